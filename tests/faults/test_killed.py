"""kill -9 at any moment: done again, or gone on with, a command ends with the tables of the one that nobody killed.

FUZZ=1 python -m pytest tests/faults/test_killed.py: at twenty moments of each command instead of one.
"""

from __future__ import annotations

import json
import os
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
        (*runs.TINY, "checkpoint.every_n_steps=1", "measure=[gate_importance]", "search=exact", "masking.steps=2"),
        ("ckpt_path=last",),
    ),
    "probe": Kind("probe", (*runs.TINY, "measure=[gate_importance,svcca,entropy]")),
    "greedy search": Kind("mask", (*runs.TINY, "search=fast")),
    "study": Kind(
        "studies.voita",
        ("+experiment=digits_voita", *runs.TINY[1:], "voita.heads=[3]", "voita.scratch_epochs=2"),
        ("ckpt_path=last",),
    ),
}


@pytest.fixture(scope="module")
def killed(trained, tmp_path_factory):
    """By kind: the folder of the whole run, and those of the runs that were killed and done again."""
    cwd = tmp_path_factory.mktemp("killed")
    weights = f"weights={trained.folder / 'model.safetensors'}"

    def command(name: str, folder: str, *more: str) -> Command:
        kind = KINDS[name]
        given = [] if kind.task == "train" else [weights]
        where = [f"hydra.run.dir={folder}/run", f"cache_dir={folder}/cache", f"out={folder}"]
        return Command(kind.task, [*kind.overrides, *given, *where, *more])

    def answers(commands: list[Command]) -> list[runs.Result]:
        """So many that one start-up for all would take longer than a test may."""
        return [end for i in range(0, len(commands), 5) for end in runs.answers(commands[i : i + 5], cwd)]

    whole = dict(zip(KINDS, answers([command(name, f"{name}/whole") for name in KINDS]), strict=True))
    assert all(end.code == 0 for end in whole.values()), [end.err for end in whole.values()]
    draws = np.random.default_rng(0)
    moments = [
        (name, f"{name}/{number}", float(draws.uniform(0.02, 0.98)) * whole[name].cpu)
        for name in KINDS
        for number in range(MOMENTS)
    ]
    first = answers([command(name, folder)._replace(signal=signal.SIGKILL, cpu=cpu) for name, folder, cpu in moments])
    assert sum(end.code == -signal.SIGPROF for end in first) >= 0.8 * len(moments)  # the others were done already
    again = []
    for name, folder, _ in moments:
        begun = any((cwd / folder / "run").rglob("last.ckpt"))
        again.append(command(name, folder, *(KINDS[name].go_on if begun else ())))
    ends = answers(again)
    found: dict[str, list[tuple[Path, runs.Result]]] = {name: [] for name in KINDS}
    for (name, folder, _), end in zip(moments, ends, strict=True):
        found[name].append((cwd / folder, end))
    return cwd, found


@pytest.mark.parametrize("name", KINDS)
def test_the_tables_are_those_of_the_run_that_nobody_killed(killed, name):
    cwd, found = killed
    whole = contents(cwd / name / "whole")
    assert whole
    for folder, end in found[name]:
        assert end.code == 0, (folder, end.err)
        ours = contents(folder)
        assert ours.keys() == whole.keys()
        for table, text in whole.items():
            assert ours[table] == text, (folder, table)


def contents(folder: Path) -> dict[str, bytes]:
    """The tables of a run and of its parts; what was spent is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("tables/*.csv")}


def test_a_search_asks_nothing_twice(killed):
    """All but the answer that was being written."""
    cwd, found = killed

    def answers(folder: Path) -> int:
        return sum(path.read_bytes().count(RECORD) for path in (folder / "cache" / "orders").iterdir())

    whole = answers(cwd / "greedy search" / "whole")
    assert whole > 20
    for folder, _ in found["greedy search"]:
        assert whole <= answers(folder) <= whole + 1


def test_a_training_and_the_parts_of_a_study_go_on_from_their_checkpoints(killed):
    _, found = killed
    gone_on = [end for name in ("training", "study") for _, end in found[name] if "resuming from" in end.out]
    assert gone_on
    for folder, _ in found["training"]:
        assert json.loads((folder / "run" / "metrics.json").read_text())["test/images"] == 101
