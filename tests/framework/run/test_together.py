"""A mistake that one rank alone finds ends the question on all of them, or the run, and never leaves one waiting."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

import runs
import spawned
from mhprobe import ranks
from mhprobe.errors import UserError


def afterwards(rank: int, world: int, folder: Path) -> None:
    """The last rank fails at the end of its work, or before, and the others have no business with it inside."""

    def work() -> int:
        if rank == world - 1:
            raise UserError(f"rank {rank} has a mistake")
        return rank

    try:
        ranks.together(work)
        said = "nothing"
    except UserError as error:
        said = f"{type(error).__name__}: {error}"
    assert ranks.together(lambda: 10 + rank) == 10 + rank  # the next question is answered
    (folder / f"rank_{rank}").write_text(said)


def inside(rank: int, world: int, folder: Path) -> None:
    """Rank 1 fails while rank 0 waits for it inside the work."""
    started = time.time()

    def work() -> None:
        if rank == 1:
            raise UserError("rank 1 has a mistake")
        ranks.total(torch.zeros(1))

    try:
        ranks.together(work, patience=1.0)
        said = "nothing"
    except ranks.LeftAlone as error:
        said = f"left alone: {error}"
    except RuntimeError:
        said = "the other left"
    (folder / f"rank_{rank}").write_text(f"{said}, {time.time() - started:.1f}")
    os._exit(0)  # as a rank that ends takes its connections along


def test_all_ranks_hear_of_a_mistake_of_one_and_go_on(tmp_path):
    spawned.ranks(afterwards, 2, tmp_path)
    said = {(tmp_path / f"rank_{rank}").read_text() for rank in (0, 1)}
    assert said == {"UserError: rank 1 has a mistake"}


def test_a_rank_whose_others_wait_for_it_leaves_and_they_are_free(tmp_path):
    spawned.ranks(inside, 2, tmp_path)
    mine, seconds = (tmp_path / "rank_1").read_text().split(", ")
    assert mine == "left alone: rank 1 has a mistake" and 1 <= float(seconds) < 10
    assert (tmp_path / "rank_0").read_text().startswith("the other left, ")


def test_alone_it_is_the_work_itself():
    assert ranks.together(lambda: 3) == 3

    def work() -> None:
        raise UserError("a mistake")

    with pytest.raises(UserError, match="a mistake"):
        ranks.together(work)


@pytest.mark.slow
def test_a_figure_that_one_of_two_ranks_refuses_ends_the_study_in_its_line(tmp_path):
    panel = f"{{_target_: spawned.one_sided, _partial_: true, folder: {tmp_path}}}"
    tiny = [word for word in runs.TINY if not word.startswith(("optim.", "trainer.max"))]
    words = [
        *tiny,
        "weights=random",
        "+paper=clark",
        "control=null",
        "trainer=ddp",
        "trainer.devices=2",
    ]
    words += ["trainer.accelerator=cpu", "figures=[4]", f"++paper.figures.figure_4.panel={panel}"]
    result = runs.run("study", *words, cwd=tmp_path)
    assert result.code == 2 and "planted: rank 1 alone refuses this figure" in result.err, (
        result.err
    )
    took = time.time() - float((tmp_path / "refused").read_text())
    assert (
        result.err.strip().splitlines()[-1].startswith("mhprobe: ")
        and "Traceback" not in result.err
    )
    assert took < 120  # ten seconds of patience, and the end of three processes; it was for ever
