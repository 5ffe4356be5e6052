"""What stands in a head's place is the same when two processes share the images, also where one of them has none.

The networks are float64, as in contracts/test_ranks.py: in float32 a forward pass itself rounds by
the batch's size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import mhprobe
import spawned
from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.data.loader import EvalOrder
from mhprobe.errors import UserError
from mhprobe.heads import FillName
from mhprobe.recording.fills import find_fill
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from models import images_for, labels_for, tiny_swin, tiny_vit

MODELS = {"vit": tiny_vit, "swin": tiny_swin}
SIZES = (7, 1)  # odd; and one image, so that the second process has none
FILLED = {"rtol": 1e-6, "atol": 1e-9}  # kept in float32: a last bit may be rounded the other way
FITTED = {"rtol": 1e-5, "atol": 1e-7}  # Adam divides by the size of a slope, however small


def found(family: str, size: int) -> dict[str, Any]:
    """By fill: what stands there, and the loss of each head's mask with it; or the line that refuses it."""
    model = MODELS[family]().double()
    layout = mhprobe.attach(model).layout
    images, labels = images_for(model, size, 1, torch.float64), labels_for(size, 1)

    def walk():
        for picks in EvalOrder(size, 3, ranks.rank(), ranks.size()):
            at = torch.from_numpy(picks.index)
            yield Batch(images[at], labels[at], at, torch.from_numpy(picks.valid))

    said: dict[str, Any] = {}
    for name in get_args(FillName):
        try:
            fill = find_fill(model, name, walk)
        except UserError as error:
            said[name] = str(error)
            continue
        losses = Evaluator(model, walk, size, masked=MaskedAs(fill))(
            torch.eye(layout.num_heads, dtype=torch.bool)
        ).losses
        said[name] = [losses, *(fill.sites if fill is not None else ())]
    return said


def one_rank(rank: int, world: int, folder: Path) -> None:
    torch.save(
        {f"{family}/{size}": found(family, size) for family in MODELS for size in SIZES},
        folder / f"{rank}.pt",
    )


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
    spawned.ranks(one_rank, 2, tmp_path)
    for rank in range(2):
        shared = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, theirs in shared.items():
            family, size = key.split("/")
            alone = found(family, int(size))
            assert list(theirs) == list(alone) == list(get_args(FillName))
            for name, mine in alone.items():
                if isinstance(mine, str):
                    assert theirs[name] == mine and (name, size) == ("resample", "1")
                    continue
                tolerance = FITTED if name == "optimal" else FILLED
                for one, two in zip(mine, theirs[name], strict=True):
                    torch.testing.assert_close(two, one, **tolerance, msg=f"{key} {name}")


def test_the_fills_differ_from_each_other():
    """Negative control: what stands there is seen in the losses."""
    losses = [each[0] for each in found("vit", 7).values()]
    assert all((a - b).abs().max() > 1e-5 for i, a in enumerate(losses) for b in losses[:i])
