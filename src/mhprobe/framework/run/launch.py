"""Processes of a composed task: one, or one per device, by torch's elastic agent; torchrun or SLURM bring their own.

Lightning would run the command line again for each process, and with it a whole Hydra sweep. Here
processes get the composed configuration in their environment, and each hands it, checked, to
``run`` of the command's module. A rank that fails ends the others, and a parent that dies ends them
all.
"""

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from omegaconf import DictConfig, OmegaConf

from mhprobe.errors import UserError, quoted
from mhprobe.framework.run.jobs import rank_by_environment
from mhprobe.framework.run.quiet import quiet
from mhprobe.framework.run.shortage import naming_settings
from mhprobe.io.progress import announce, screen
from mhprobe.io.stopping import Stopped, handle, listen, outlive_readers, stop

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import TrainerSettings

JOB, NOTES = (
    "MHPROBE_JOB",
    "MHPROBE_NOTES",
)  # environment of ranks: the configuration, and the folder for errors
MISTAKE = "mistake.txt"  # the first UserError of a rank


def run(
    task: str,
    cfg: DictConfig,
    folder: Path,
    typed: Sequence[str] = (),
    sweep: Sequence[str] = (),
) -> None:
    """Run ``task`` on the composed configuration, writing into ``folder``.

    typed: overrides of the job. sweep: those of the sweep that it is of. UserError for a setting
    that is wrong, and for a typed one that would do nothing.
    """
    with _importing():
        from mhprobe.framework.run.needed import refuse_unneeded
        from mhprobe.framework.run.schema import check, refuse_absent_folders

        command = importlib.import_module(f"mhprobe.{task}")

    checked = check(task, cfg)
    refuse_unneeded(checked, typed, sweep, getattr(command, "needs", None))
    refuse_absent_folders(checked)
    launched = "RANK" in os.environ or "SLURM_PROCID" in os.environ
    if "SLURM_PROCID" in os.environ:
        # srun's signal for the end of the time; Lightning would save inside the handler, where
        # ranks deadlock
        signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    processes = _processes(checked.trainer)
    if checked.trainer.num_nodes > 1 and not launched:
        raise UserError(
            f"trainer.num_nodes: {checked.trainer.num_nodes} machines need somebody who starts a "
            "process on each: "
            f"srun (launch/slurm_train.sh) or torchrun. On this machine alone leave it at 1."
        )
    if processes == 1 or launched:
        shown = (
            "off" if rank_by_environment() else checked.progress
        )  # of several processes the first has the screen
        with (
            naming_settings(checked),
            screen(f"mhprobe.{task} {checked.name}", shown, checked.verbose),
        ):
            announce([f"mhprobe.{task} begins; results go to {folder}"])  # imports take seconds
            with _importing():
                command = module(task)
            command.run(checked, folder)
    else:
        _start(task, cfg, folder, processes)


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Switch garbage collection off: imports make a million objects that all stay."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def module(task: str) -> Any:
    """Return the module of a command: mhprobe.train, mhprobe.studies.voita; of a package its __main__."""
    quiet()
    importlib.import_module(
        "mhprobe.framework.run.trainers"
    )  # imports nearly everything that a command imports when it runs
    command = importlib.import_module(f"mhprobe.{task}")
    return (
        importlib.import_module(f"{command.__name__}.__main__")
        if hasattr(command, "__path__")
        else command
    )


def _processes(trainer: "TrainerSettings") -> int:
    """Return the number of processes.

    UserError for a wrong number, and for any strategy but auto and ddp.
    """
    if not re.fullmatch(
        r"auto|single_device|ddp(_find_unused_parameters_(true|false))?", str(trainer.strategy)
    ):
        raise UserError(
            f"trainer.strategy: expected auto or ddp, got {trainer.strategy}. Every process holds "
            "the whole network: heads are recorded and masked in whole layers, on images of its "
            "own. For one that does not fit: a smaller data.eval_batch_size."
        )
    devices = trainer.devices
    wrong = UserError(
        "trainer.devices: expected a number from 1 on, a list of different device numbers, or "
        f"auto, got {quoted(devices)}."
    )
    if isinstance(devices, list):
        numbers = all(type(number) is int and number >= 0 for number in devices)
        if not devices or not numbers or len(set(devices)) < len(devices):
            raise wrong
        return len(devices)
    if devices in ("auto", -1, "-1"):
        if trainer.strategy == "auto" and devices == "auto":
            return 1
        import torch

        gpus = torch.cuda.device_count() if trainer.accelerator in ("auto", "gpu", "cuda") else 0
        return gpus or 2  # on a CPU enough to test that numbers do not depend on the processes
    if not str(devices).isdecimal() or int(devices) < 1:
        raise wrong
    return int(devices)


def _start(task: str, cfg: DictConfig, folder: Path, processes: int) -> None:
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # failures are reported below; the agent's logger has a level of its own
    for name in ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    job = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    if job.trainer.devices in ("auto", -1, "-1"):
        job.trainer.devices = processes
    here: dict[str, Any] = dict(
        min_nodes=1, max_nodes=1, rdzv_backend="c10d", rdzv_endpoint="localhost:0"
    )
    how = LaunchConfig(
        **here,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        max_restarts=0,
        monitor_interval=0.2,
    )
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    with tempfile.TemporaryDirectory(prefix="mhprobe_") as notes:
        environment = {JOB: OmegaConf.to_yaml(job), NOTES: notes, "OMP_NUM_THREADS": threads}
        try:
            with mock.patch.dict(os.environ, environment):
                elastic_launch(how, sys.executable)(
                    "-m", "mhprobe.framework.run.launch", task, str(folder)
                )
        except SignalException as stopped:  # the ranks had their time to save
            stop(stopped.sigval)
        except ChildFailedError as error:
            sys.exit(
                _failed(
                    {number: failure.exitcode for number, failure in error.failures.items()},
                    Path(notes),
                )
            )


def _failed(codes: Mapping[int, int], notes: Path) -> int:
    """Return the exit code of a run whose ranks ended with ``codes``, after a line on stderr; raise a UserError."""
    if (notes / MISTAKE).exists():
        raise UserError((notes / MISTAKE).read_text())
    for number, code in codes.items():
        if code < 0 and code != -signal.SIGTERM:  # the others only lost it
            name = signal.Signals(-code).name
            print(
                f"mhprobe: rank {number} of the run was killed ({name}), e.g. for want of memory; "
                "the others were "
                f"stopped. A training goes on with ckpt_path=last.",
                file=sys.stderr,
            )
            return 128 - code
    # the first rank to fail broke the collectives of the others
    if last_words := sorted(notes.glob("rank_*.txt"), key=lambda path: path.stat().st_mtime_ns):
        text = last_words[0].read_text()
        if text.isdecimal():  # a signal: it was stopped and did not fail
            stop(int(text))
        print(text, file=sys.stderr)
    code = next(iter(codes.values()))
    return code if code > 0 else 128 - code


def _rank(task: str, folder: Path) -> None:
    """Run the task as one of several ranks.

    The process that started them prints a UserError once.
    """
    from mhprobe.ranks import LeftAlone

    notes = Path(os.environ[NOTES])
    try:
        run(task, cast(DictConfig, OmegaConf.create(os.environ[JOB])), folder)
    except UserError as error:
        with contextlib.suppress(FileExistsError), (notes / MISTAKE).open("x") as file:
            file.write(str(error))
        if isinstance(error, LeftAlone):
            # interpreter's end waits for the collective that it left behind, without a limit
            os._exit(2)
        sys.exit(2)
    except Exception:
        handle(signal.SIG_IGN)  # the agent stops all ranks, and this one has to write first
        if (notes / MISTAKE).exists():  # a rank that left has broken this one's collective
            sys.exit(2)
        _last_words(traceback.format_exc())
        sys.exit(1)


def _last_words(text: object) -> None:
    """Write a traceback, or the number of the signal that this rank got, for the process that started it."""
    path = Path(os.environ[NOTES]) / f"rank_{rank_by_environment()}.txt"
    with contextlib.suppress(FileExistsError, FileNotFoundError), path.open("x") as file:
        file.write(str(text))


def _end_with(parent: int) -> None:
    """Stop when the process that started this rank is gone: by SIGTERM, which saves, then at once."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
    os._exit(143)  # the main thread hangs in a collective, and nobody is left to end it


if __name__ == "__main__":
    outlive_readers()
    listen(_last_words)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _rank(sys.argv[1], Path(sys.argv[2]))
    except Stopped as stopped:  # also in the midst of another exception
        sys.exit(stopped.code)
    finally:
        handle(signal.SIG_IGN)  # a rank that is ending cannot be told to
