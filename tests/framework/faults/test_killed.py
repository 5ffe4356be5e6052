"""kill -9 at any moment: done again, or gone on with, a command ends with the tables of the one that nobody killed.

FUZZ=1 python -m pytest tests/framework/faults/test_killed.py: at twenty moments of each command
instead of one; -k "nobody and study": of that command.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import runs
from runs import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MOMENTS = 20 if "FUZZ" in os.environ else 1
RECORD = b"mhps"  # what each answer about a mask begins with on disk


class Kind(NamedTuple):
    """A command; how it is told to go on where it left a checkpoint."""

    task: str
    overrides: tuple[str, ...]
    go_on: tuple[str, ...] = ()


KINDS = {
    "training": Kind(
        "train",
        (
            *runs.TINY,
            "checkpoint.every_n_steps=1",
            "measure=[gate_importance]",
            "search=exact",
            "masking.steps=2",
        ),
        ("ckpt_path=last",),
    ),
    "probe": Kind("probe", (*runs.TINY, "measure=[gate_importance,svcca,entropy]")),
    "greedy search": Kind("mask", (*runs.TINY, "masking=six_curves", "search=fast")),
    "study": Kind(
        "studies.voita",
        ("+experiment=digits_voita", *runs.TINY[1:], "voita.heads=[3]", "voita.scratch_epochs=2"),
        ("ckpt_path=last",),
    ),
}


class Killed(NamedTuple):
    """The folder of the whole run, and the runs that were killed and done again."""

    whole: Path
    again: list[tuple[Path, runs.Result]]


@pytest.fixture(scope="module")
def killed(trained, tmp_path_factory):
    """By name of a kind; each is made when it is first asked for."""
    weights = f"weights={trained.folder / 'model.safetensors'}"

    @functools.cache
    def of(name: str) -> Killed:
        kind, cwd = KINDS[name], tmp_path_factory.mktemp("killed")

        def command(folder: str, *more: str) -> Command:
            given = [] if kind.task == "train" else [weights]
            where = [f"hydra.run.dir={folder}/run", f"cache_dir={folder}/cache", f"out={folder}"]
            return Command(kind.task, [*kind.overrides, *given, *where, *more])

        [whole] = runs.answers([command("whole")], cwd)
        assert whole.code == 0, whole.err
        moments = whole.cpu * np.random.default_rng(0).uniform(0.02, 0.98, MOMENTS)
        folders = [f"run_{number}" for number in range(MOMENTS)]
        for folder, moment in zip(folders, moments, strict=True):
            while (
                _killed(command(folder), moment, cwd).code == 0
            ):  # done already: the first one took longer
                shutil.rmtree(cwd / folder)
                moment /= 2
        begun = [any((cwd / folder / "run").rglob("last.ckpt")) for folder in folders]
        again = [
            command(f, *(kind.go_on if b else ())) for f, b in zip(folders, begun, strict=True)
        ]
        return Killed(
            cwd / "whole",
            list(zip(map(cwd.joinpath, folders), runs.answers(again, cwd), strict=True)),
        )

    return of


@pytest.mark.parametrize("name", KINDS)
def test_the_tables_are_those_of_the_run_that_nobody_killed(killed, name):
    whole = contents(killed(name).whole)
    assert whole
    for folder, end in killed(name).again:
        assert end.code == 0, (folder, end.err)
        ours = contents(folder)
        assert ours.keys() == whole.keys()
        for table, text in whole.items():
            assert ours[table] == text, (folder, table)


def _killed(command: Command, moment: float, cwd: Path) -> runs.Result:
    """How a run ends that is killed after so many seconds of work."""
    [end] = runs.answers([command._replace(signal=signal.SIGKILL, cpu=float(moment))], cwd)
    assert end.code in (0, -signal.SIGPROF), end.err
    return end


def contents(folder: Path) -> dict[str, bytes]:
    """The tables of a run and of its parts; what was spent is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("tables/*.csv")
    }


def test_a_search_asks_nothing_twice(killed):
    """All but the answer that was being written."""

    def answers(folder: Path) -> int:
        return sum(
            path.read_bytes().count(RECORD) for path in (folder / "cache" / "orders").iterdir()
        )

    found = killed("greedy search")
    whole = answers(found.whole)
    assert whole > 20
    for folder, _ in found.again:
        assert whole <= answers(folder) <= whole + 1


def test_a_training_and_the_parts_of_a_study_go_on_from_their_checkpoints(killed):
    both = [*killed("training").again, *killed("study").again]
    assert any("resuming from" in end.out for _, end in both)
    for folder, _ in killed("training").again:
        assert json.loads((folder / "run" / "metrics.json").read_text())["test/images"] == 101
