"""Masking curves, and masked heads, with numbers that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mhprobe.masking.base import Path
from mhprobe.masking.parts.trace import Curve, Points, Trace
from mhprobe.masking.redundant_or_inert import Likeness, MaskedHead


def curve(
    name: str,
    heads: Sequence[float],
    accuracy: Sequence[float],
    p: Sequence[float] | None = None,
    *,
    split: str = "test",
    chosen_on: str | None = "validation",
    search: str = "exact",
    width: float = 0.02,
    seeds: Sequence[int | None] = (None,),
) -> Curve:
    """width: of the interval, to either side.

    seeds: one trace each, with accuracies evenly around ``accuracy``.
    """
    count, middle = len(heads), (len(seeds) - 1) / 2
    traces = []
    for number, seed in enumerate(seeds):
        value = torch.tensor(accuracy, dtype=torch.float64) + 0.001 * (number - middle)
        masked = torch.tensor(heads, dtype=torch.float64)
        change = value - value[0]
        changes = (change, change - width, change + width)
        ends = (value - width, value + width)
        points = Points(masked, value, 1 - value, *ends, *changes, *[-value] * 3)
        path = Path(seed, torch.zeros(count - 1, 1, dtype=torch.bool), ("unit",) * (count - 1))
        found = None if p is None else torch.tensor(p, dtype=torch.float64)
        traces.append(
            Trace(path, tuple(range(count)), torch.zeros(count, 1, dtype=torch.bool), points, found)
        )
    return Curve(name, split, search, chosen_on, False, tuple(traces))


def masked_head(name: str, phase: str, like: Likeness | None, share: float) -> MaskedHead:
    return MaskedHead(
        name, "test", 0, 1, phase, {"svcca": like}, 0.01, share, share, share > 0.5, inert=False
    )
