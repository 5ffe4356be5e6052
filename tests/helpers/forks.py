"""One process that has imported everything, for all processes of a test run: it forks for whoever asks.

Importing takes longer than most of what tests start. Who asks first starts the server; it ends with
the test run.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple, TextIO

PLACE = "MHPROBE_TESTS_FORKS"  # a folder and the process that it lives as long as
ALARM = 500  # seconds, longer on a busy machine; what is asked may set an earlier one
PATIENCE = 60  # of one that waits for a server that another process is starting


class End(NamedTuple):
    """How a fork ended.

    code: negative for the signal that killed it. cpu: seconds of processor time.
    """

    code: int
    out: str
    err: str
    cpu: float


def patient(seconds: float) -> int:
    """Seconds of the clock for work of so many on an idle machine: what the other processes leave takes longer."""
    return round(seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def environment() -> dict[str, str]:
    """One thread per process, no network, the mhprobe of the tests, and nothing that a test runner left to others.

    What is installed may be another copy of it: that of the clone which this one is a work tree of.
    """
    dropped = ("PYTHONWARNINGS", "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID")
    left = {key: value for key, value in os.environ.items() if key not in dropped}
    package = importlib.util.find_spec("mhprobe")
    assert package is not None and package.origin is not None
    source = str(Path(package.origin).parents[1])
    return {
        **left,
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }


def prepare() -> None:
    """Before there are several processes that run tests: where they look for the server."""
    if PLACE not in os.environ:
        folder = tempfile.mkdtemp(prefix="forks_")
        os.environ[PLACE] = f"{os.getpid()}:{folder}"
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def collect_rarely() -> None:
    """A collection looks through all of torch again and hardly ever finds anything: a tenth of the time of a test."""
    gc.set_threshold(20_000, 50, 1_000)


def ask(action: str, cwd: Path, env: dict[str, str], *told: Any) -> End:
    """``action``, "module.function", is called with ``told`` in a fork, in the folder ``cwd``, and its end awaited.

    Where it returns the exit status is 0, where it raises SystemExit it is that one's.
    """
    server = _connected()
    server.write(json.dumps([action, str(cwd), env, told]) + "\n")
    server.flush()
    answer = server.readline()
    assert answer, "the server of tests is gone"
    return End(*json.loads(answer))


@functools.cache
def _connected() -> TextIO:
    folder = Path(os.environ[PLACE].partition(":")[2])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start(folder)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "socket"))
        pipe = client.makefile("rw")
    atexit.register(pipe.close)
    return pipe


def _start(folder: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__)),
        str(folder),
        os.environ[PLACE].partition(":")[0],
    ]
    started = os.spawnve(os.P_NOWAIT, sys.executable, command, environment())
    deadline = time.monotonic() + PATIENCE
    while not (folder / "socket").exists():
        assert os.waitpid(started, os.WNOHANG) == (0, 0) and time.monotonic() < deadline, (
            "no server of tests"
        )
        time.sleep(0.05)


def executable() -> Path:
    """A Python that runs ``-m module`` and ``-c code`` in forks, for what starts ``sys.executable``."""
    path = Path(os.environ[PLACE].partition(":")[2]) / "python"
    if not path.exists():
        words = f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        written = path.with_name(f"python_{os.getpid()}")
        written.write_text(words + "import forks\nforks.start()\n")
        written.chmod(0o755)
        written.rename(path)  # another process may write it, too
    return path


def start() -> None:
    """Of that Python: what its command line says, to the end."""
    end = ask("runs.started", Path.cwd(), dict(os.environ), sys.argv[1:])
    sys.stdout.write(end.out), sys.stderr.write(end.err)
    sys.exit(end.code if end.code >= 0 else 128 - end.code)


# the server


def _serve(folder: Path, owner: int) -> None:
    collect_rarely()
    os.setsid()  # what ends the one that started it ends its group
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1), os.dup2(said, 2)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "early"))
    listener.listen(100)
    (folder / "early").rename(
        folder / "socket"
    )  # who connects before all is imported waits for the first answer only
    import warm

    for name in ("pytest", "runs", "spawned", "pieces"):
        importlib.import_module(name)
    warm.up()
    while _is_there(owner):
        if not select.select([listener], [], [], 1)[0]:
            continue
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(client)
            os._exit(0)
        client.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    shutil.rmtree(folder, ignore_errors=True)  # if the owner was killed


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _attend(client: socket.socket) -> None:
    """All that one process of the test run asks, one after the other."""
    _leave_to_the_server_what_is_its_own()
    pipe = client.makefile("rw")
    for line in iter(pipe.readline, ""):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0), os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
                _act(*json.loads(line))
            _, status, used = os.wait4(child, 0)
            out.seek(0), err.seek(0)
            ended = os.waitstatus_to_exitcode(status)
            late = (
                "it was stopped: it had not ended in its time (forks.ALARM)\n"
                if ended == -signal.SIGALRM
                else ""
            )
            pipe.write(
                json.dumps([ended, out.read(), err.read() + late, used.ru_utime + used.ru_stime])
                + "\n"
            )
            pipe.flush()


def _act(action: str, cwd: str, env: dict[str, str], told: list[Any]) -> None:
    os.chdir(cwd)
    os.environ.clear(), os.environ.update(env)
    signal.alarm(patient(ALARM))
    module, _, name = action.partition(".")
    code = 0
    try:
        getattr(importlib.import_module(module), name)(*told)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown(), atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # tearing down all that was imported takes longer than most of what is asked


def _leave_to_the_server_what_is_its_own() -> None:
    """A fork that cleaned up at its end, or at that of an object, would take libraries' folders away from the next."""
    atexit._clear()
    for inherited in list(weakref.finalize._registry):
        inherited.detach()
    weakref.finalize._registered_with_atexit = False  # so that the fork's own are done


if __name__ == "__main__":
    sys.modules["forks"] = sys.modules["__main__"]
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
