"""Whoever tells a command to stop gets one line and the exit code of the signal; what is finished is kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runs
from mhprobe.framework.run import launch
from mhprobe.framework.run.sections import commands_of_conf, sections
from mhprobe.io import stopping
from runs import Command

pytestmark = pytest.mark.slow

# at which batch of images: in the midst of what the command is there for, behind the test of the
# whole model
BATCH = {
    "train": 12,
    "probe": 5,
    "mask": 5,
    "prune": 3,
    "maps": 1,
    "studies.causal": 5,
    "studies.voita": 5,
}
MORE = {
    "prune": ("prune=order", "prune/order=fisher", "prune.remove=2"),
    "studies.voita": ("+experiment=digits_voita", "voita.heads=[3]"),
    "maps": ("images=[0,1]",),
    "study": ("+paper=clark", "figures=[2]"),
}
WALKS = [
    name for name in commands_of_conf() if "to" not in sections(name)
]  # who only fetches shows no image to a network
SIGNALS = {signal.SIGINT: ("interrupted; ", 130), signal.SIGTERM: ("stopped (SIGTERM); ", 143)}


@pytest.fixture(scope="module")
def stopped(trained, tmp_path_factory):
    """How every command ends that is told to stop, by (command, signal)."""
    cwd = tmp_path_factory.mktemp("stopped")
    weights = f"weights={trained.folder / 'model.safetensors'}"
    told = {
        (name, number): Command(name, overrides(name, weights), number, batch=BATCH.get(name, 3))
        for name in WALKS
        for number in SIGNALS
    }
    return cwd, dict(zip(told, runs.answers(list(told.values()), cwd), strict=True))


def overrides(name: str, weights: str) -> list[str]:
    tiny = runs.TINY[1:] if any("+experiment" in part for part in MORE.get(name, ())) else runs.TINY
    return [
        *tiny,
        *MORE.get(name, ()),
        *([] if name == "train" else [weights]),
        "data.eval_batch_size=16",
    ]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("name", WALKS)
def test_a_command_that_is_told_to_stop_says_one_line_and_why_it_ended(stopped, name, number):
    cwd, ends = stopped
    result, (words, code) = ends[name, number], SIGNALS[number]
    assert result.code == code, result.err
    (line,) = [line for line in result.err.splitlines() if line.strip()]
    assert line.startswith(f"mhprobe: {words}") and len(line) > len(f"mhprobe: {words}")
    assert not list(cwd.rglob("*.tmp")) and not list(cwd.rglob("*.partial"))  # nothing half written


TWO = ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")
MASK = ("+experiment=digits_vit", "trainer.accelerator=cpu", "search=exact", "data.limit_test=200")
MASK += ("masking=six_curves",)  # which takes minutes


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_is_told_to_stop_ends_the_run_with_one_line(tmp_path, rank):
    told = Command("mask", [*MASK, *TWO, "weights=random"], signal.SIGTERM, batch=8, rank=rank)
    (result,) = runs.answers([told], tmp_path)
    assert any(tmp_path.rglob("*.scores"))  # in the midst of the search
    one_line_of_stopping(result)


def test_a_run_whose_processes_are_all_told_to_stop_says_one_line(tmp_path):
    """As a user does: a search of minutes in real processes, told to stop once it has evaluated something."""
    process = runs.start("mask", *MASK, *TWO, "weights=random", cwd=tmp_path)
    runs.wait(lambda: any(tmp_path.rglob("*.scores")) or process.poll() is not None)
    ranks = ranks_of(process.pid)
    assert set(ranks) == {"0", "1"}
    for pid in [process.pid, *ranks.values()]:
        os.kill(pid, signal.SIGTERM)
    one_line_of_stopping(runs.finish(process, tmp_path))
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in ranks.values())


def one_line_of_stopping(result: runs.Result) -> None:
    assert result.code == 143, result.err
    lines = [line for line in result.err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("mhprobe: stopped (SIGTERM); "), result.err


def test_a_rank_that_dies_is_named_in_one_line(tmp_path):
    told = Command("mask", [*MASK, *TWO, "weights=random"], signal.SIGKILL, batch=8, rank="1")
    (result,) = runs.answers([told], tmp_path)
    assert result.code == 137, result.err
    (line,) = [line for line in result.err.splitlines() if line.strip()]
    assert "rank 1" in line and "SIGKILL" in line


def test_a_sweep_goes_on_after_a_job_that_lost_a_rank(tmp_path):
    """Only the first job has a rank 1, which is the one that dies."""
    sweep = ("-m", "trainer.devices=2,1", "measure=[]", "hydra.sweep.dir=sweep")
    tiny = (*runs.TINY, "trainer=ddp", "trainer.accelerator=cpu", "weights=random")
    (result,) = runs.answers(
        [Command("probe", [*tiny, *sweep], signal.SIGKILL, batch=1, rank="1")], tmp_path
    )
    assert result.code == 1, result.err
    assert "1 of 2 jobs failed" in result.err and re.search(
        r"\n  0 \(.*\): exit code 137\n", result.err
    )
    assert [(tmp_path / "sweep" / job / "metrics.json").exists() for job in "01"] == [False, True]


def test_a_rank_that_is_told_to_stop_while_it_fails_still_says_why(tmp_path):
    """What breaks one rank breaks the collectives of the others, which are told to stop at that very moment."""
    code = (
        "import os, signal, sys; from mhprobe.framework.run import launch\n"
        "def fails(*_): raise RuntimeError('broken')\n"
        "def told(): os.kill(os.getpid(), signal.SIGTERM); return 'why'\n"
        "launch.run, launch.traceback.format_exc = fails, told\n"
        "launch.listen(launch._last_words); launch._rank('mask', None)"
    )
    told = {launch.NOTES: str(tmp_path), launch.JOB: "{}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**runs.environment(), **told},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["why"]


def ranks_of(parent: int) -> dict[str, int]:
    """RANK -> process, of the ranks that a command has started."""
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        told = dict(
            part.split("=", 1)
            for part in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if "=" in part
        )
        if "RANK" in told:
            found[told["RANK"]] = int(pid)
    return found


def test_a_process_that_swallows_the_exception_ends_all_the_same(tmp_path):
    """As a destructor or a library may do that the signal happens to come into."""
    code = (
        "import os, signal, time; from mhprobe.io import stopping; stopping.GRACE = 0.2; "
        "stopping.listen(print)\n"
        "try: os.kill(os.getpid(), signal.SIGTERM)\n"
        "except BaseException: time.sleep(200)"
    )
    result = runs.python(code, cwd=tmp_path)
    assert result.code == 143


def test_the_grace_is_within_what_is_promised():
    assert stopping.GRACE < 10


def test_a_signal_that_comes_while_an_object_is_cleaned_up_is_not_lost(tmp_path):
    """Python drops an exception of a weak reference's callback: a traceback was printed, and the process went on."""
    code = (
        "import os, signal, sys, time, weakref; from mhprobe.io import stopping; "
        "stopping.listen(id)\n"
        "def gone(_): os.kill(os.getpid(), signal.SIGTERM); sum(range(9))\n"
        "thing = {1}; seen = weakref.ref(thing, gone)\n"
        "try: del thing; time.sleep(200)\n"
        "except stopping.Stopped as end: print(end); sys.exit(end.code)"
    )
    result = runs.python(code, cwd=tmp_path)
    assert (result.code, result.out.strip(), result.err) == (143, "SIGTERM", "")
