"""Groups of heads are shared out over ranks at the end: each is compared by one of them, and all know what it found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import spawned
from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.measures.svcca import SVCCA
from related import LAYOUT, batch_of, related

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning"),
]


def measured(images: slice) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The columns, and the groups that this process compared."""
    measure, done = SVCCA(LAYOUT), []
    compare = measure._of_group
    measure._of_group = lambda group: done.append(group) or compare(group)
    measure.update(batch_of([z[images] for z in related(images=12)]))
    return measure.columns(), done


def one_rank(rank: int, world: int, folder: Path) -> None:
    found, done = measured(slice(rank, None, world))
    torch.save(found, folder / f"columns_{rank}.pt")
    assert done == list(range(rank, len(LAYOUT.sites), world))
    with pytest.raises(
        UserError, match="number 1 refuses"
    ):  # on both ranks, though one alone does it
        ranks.in_turn(refuses_one, 3)


def refuses_one(number: int) -> int:
    if number == 1:
        raise UserError("number 1 refuses.")
    return number


def test_each_group_is_compared_by_one_rank_and_the_numbers_are_those_of_one_process(tmp_path):
    expected, done = measured(slice(None))
    assert len(done) == len(LAYOUT.sites) > 1
    spawned.ranks(one_rank, 2, tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"columns_{rank}.pt")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
