"""Running the command line as a user does, and configurations that are done in seconds."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

import forks
from forks import environment, patient
from mhprobe.framework.run import composing, sections
from mhprobe.framework.run.needed import TRAINS
from mhprobe.framework.run.schema import Config, check

# a ViT of 2 layers x 3 heads on a few digits, without curves: a whole run is a few seconds of
# imports and one of work
TINY = (
    "+experiment=digits_vit",
    "backbone.embed_dim=24",
    "backbone.depth=2",
    "backbone.num_heads=3",
    "data.limit_train=96",
    "data.limit_val=51",
    "data.limit_test=101",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "optim.warmup_epochs=1",
)
SHORT = ("optim.warmup_epochs=1", "masking=none", "measure=[]")
OF_TRAINING = ("trainer.max_epochs=2", "optim.warmup_epochs=1")  # refused where nothing is trained
TIMEOUT = 300  # seconds for one command; the machine may be busy


def rows(path: Path) -> list[dict[str, str]]:
    """Of a table that a run wrote."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def config(command: str, folder: Path, *overrides: str) -> Config:
    """A tiny configuration of a command, checked, for its ``run``; decoded images are kept in ``folder``.

    A command that looks into trained weights is given random ones, unless ``overrides`` name
    others.
    """
    return checked(command, *TINY, "trainer.precision=32-true", f"cache_dir={folder}", *overrides)


def checked(command: str, *overrides: str) -> Config:
    """What a command's ``run`` takes."""
    cfg = composed(command, *overrides)
    if OmegaConf.is_missing(cfg, "weights"):
        cfg.weights = "random"
    return check(command, cfg)


def composed(command: str, *overrides: str, hydra: bool = False) -> DictConfig:
    """What Hydra composes for a command."""
    return composing.composed(command, known(command, overrides), hydra)


def known(command: str, overrides: Sequence[str]) -> list[str]:
    """Without what only makes a training short, for a command that has no such section, or trains nothing."""
    own = sections.sections(command)
    tuned = any(re.match(r"prune\.tune_epochs=[1-9]", part) for part in overrides)
    dropped = () if command in TRAINS or tuned else OF_TRAINING
    if "prune" in own:
        dropped = (*dropped, "trainer.max_epochs=2")
    if "prune" in own and not tuned:
        dropped = (*dropped, "trainer.precision=32-true")
    return [
        part
        for part in overrides
        if part not in dropped and (part not in SHORT or part.split(".")[0].split("=")[0] in own)
    ]


@dataclass(frozen=True)
class Result:
    """How a command ended. code: negative for the signal that killed it."""

    code: int
    out: str
    err: str
    folder: Path | None = None  # the newest run's
    cpu: float = 0.0  # seconds of processor time, of ``answers`` only

    @property
    def answer(self) -> str:
        """The one line of a refused command; fails if there is another line, a traceback or another exit code."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert self.code == 2, (self.code, self.out, self.err)
        assert len(lines) == 1 and lines[0].startswith("mhprobe: "), self.err
        return lines[0]


def start(task: str, *overrides: str, cwd: Path) -> subprocess.Popen[str]:
    """``python -m mhprobe.<task>`` in the background, in the folder ``cwd``."""
    return subprocess.Popen(
        [sys.executable, "-m", f"mhprobe.{task}", *known(task, overrides)],
        cwd=cwd,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], cwd: Path) -> Result:
    """Wait for a started command."""
    try:
        out, err = process.communicate(timeout=patient(TIMEOUT))
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Result(process.returncode, out, err, newest(cwd))


def run(task: str, *overrides: str, cwd: Path) -> Result:
    """``python -m mhprobe.<task>`` to its end."""
    (result,) = answers([Command(task, overrides)], cwd)
    return dataclasses.replace(result, folder=newest(cwd))


def module(name: str, *arguments: str, cwd: Path) -> Result:
    """``python -m name arguments``, in a fork."""
    end = forks.ask("runs.as_main", cwd, environment(), name, arguments)
    return Result(end.code, end.out, end.err, cpu=end.cpu)


def as_main(name: str, arguments: Sequence[str]) -> None:
    """In a fork: the module, found where ``python -m`` looks for it.

    What it starts by its Python are forks, too.
    """
    sys.path.insert(0, os.getcwd())
    sys.executable = str(forks.executable())
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def started(arguments: Sequence[str]) -> None:
    """In a fork: ``python <arguments>``, a module with -m or code with -c."""
    kind, what, *words = arguments
    if kind == "-c":
        as_code(what)
    elif what.startswith("mhprobe."):
        obey(what.removeprefix("mhprobe."), words)
    else:
        as_main(what, words)


def python(code: str, cwd: Path) -> Result:
    """``python -c code``, in a fork."""
    end = forks.ask("runs.as_code", cwd, environment(), code)
    return Result(end.code, end.out, end.err, cpu=end.cpu)


def as_code(code: str) -> None:
    """In a fork."""
    exec(compile(code, "-c", "exec"), {"__name__": "__main__"})


def wait(done: Callable[[], bool]) -> None:
    """Until ``done``, looking often; fails after as long as a command may take."""
    deadline = time.monotonic() + patient(TIMEOUT)
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def newest(cwd: Path) -> Path | None:
    """The folder of the run that started last in ``cwd``; its name is the time."""
    runs = sorted(
        (path.parent for path in cwd.glob("outputs/*/*/config")),
        key=lambda path: path.stat().st_mtime_ns,
    )
    return runs[-1] if runs else None


class Command(NamedTuple):
    """``python -m mhprobe.<task> <overrides>``, sending itself ``signal`` at a moment that is none of the clock.

    After checkpoint number ``save``, at batch number ``batch`` of images, or after ``cpu`` seconds
    of work. rank: of several processes only this one does, else each of them.
    """

    task: str
    overrides: Sequence[str]
    signal: int = 0
    save: int = 0
    batch: int = 0
    cpu: float = 0.0
    rank: str = ""


def answers(commands: Sequence[Command], cwd: Path) -> list[Result]:
    """How each command ends.

    Each runs in a fork, and its ranks in forks of that: most of a tiny run is import time.

    ``start`` starts processes as a user does.
    """
    told = [
        command._replace(overrides=known(command.task, command.overrides)) for command in commands
    ]
    ends = [forks.ask("runs.obey", cwd, environment(), *command) for command in told]
    return [Result(end.code, end.out, end.err, cpu=end.cpu) for end in ends]


def obey(
    task: str,
    overrides: Sequence[str],
    number: int = 0,
    save: int = 0,
    batch: int = 0,
    cpu: float = 0,
    rank: str = "",
) -> None:
    """In a fork: the command, with the signal at its moment."""
    from mhprobe.data.base import ImageData
    from mhprobe.framework.run import cli
    from mhprobe.framework.training.checkpoints import AtomicCheckpointIO

    signal.alarm(patient(240))  # a mistake that is not seen would train for hours
    _ranks_are_forks()
    if save:
        _send_after(AtomicCheckpointIO, "save_checkpoint", number, save, rank)
    if batch:
        _send_after(ImageData, "transform", number, batch, rank)
    if cpu:
        if (
            number != signal.SIGKILL
        ):  # the timer's own signal ends a process as kill -9 does: nothing runs
            signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        signal.setitimer(signal.ITIMER_PROF, cpu)
    sys.argv = [f"python -m mhprobe.{task}", *overrides]
    cli.main(task)


def _ranks_are_forks() -> None:
    from torch.distributed.launcher import api

    logging.getLogger("torch.multiprocessing.spawn").setLevel(
        logging.ERROR
    )  # which rank it ended: we say so ourselves
    launcher = api.elastic_launch

    def forked(config: Any, _: Any) -> Callable[..., Any]:
        started = launcher(dataclasses.replace(config, start_method="fork"), _rank)
        return lambda m, launch, *words: started(*words)

    api.elastic_launch = forked

    context: Any = sys.modules[
        "torch.multiprocessing.spawn"
    ].ProcessContext  # under its name lies a function
    join = context.join

    def killed_first(self: Any, *args: Any) -> bool:
        """Of ranks that fail within one look it names the first; real ranks are all named (launch._failed)."""
        ends = {
            sentinel: self.processes[index].exitcode or 0
            for sentinel, index in self.sentinels.items()
        }
        self.sentinels = {
            sentinel: self.sentinels[sentinel]
            for sentinel in sorted(ends, key=lambda one: ends[one])
        }
        return bool(join(self, *args))

    context.join = killed_first


def _rank(*words: str) -> None:
    sys.argv[1:] = words
    del sys.modules["mhprobe.framework.run.launch"]
    runpy.run_module("mhprobe.framework.run.launch", run_name="__main__")


def _send_after(owner: type, name: str, number: int, calls: int, rank: str) -> None:
    count, whole = itertools.count(1), getattr(owner, name)

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = whole(self, *args, **kwargs)
        if next(count) == calls and rank in ("", os.environ.get("RANK")):
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, counted)
