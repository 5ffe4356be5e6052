"""A line of numbers per masking curve: where it stands, and how many heads may go."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.masking.parts.trace import Curve, Points, first


class Totals(NamedTuple):
    """Of one curve on one split.

    unmasked: accuracy with all heads. area_shared: mean accuracy over the heads masked, from none to ``shared_heads``,
        the most that every curve of this split reaches; larger is better for curves that keep, and only so far can
        curves of different length be compared.
    heads_within_1_point: heads that go before the accuracy first falls more than 0.01 below the unmasked model's.
    heads_before_worse: heads that go before the accuracy is first significantly lower (p_holm < 0.05); None where it is
        not tested: on means over repeats, and on the images that chose the path.
    of: what "accuracy" is.
    """

    curve: str
    split: str
    search: str
    unmasked: float
    area_shared: float
    shared_heads: float
    heads_within_1_point: float
    heads_before_worse: float | None
    of: str = "accuracy"


def totals(curves: Sequence[Curve]) -> list[Totals]:
    """Of the curves that have more than one step."""
    whole = [curve for curve in curves if curve.step[0] == 0 and len(curve.step) > 1]
    found = []
    for curve in whole:
        points = curve.points
        shared = min(float(other.points.heads[-1]) for other in whole if other.split == curve.split)
        found.append(
            Totals(
                curve=curve.name,
                split=curve.split,
                search=curve.search,
                unmasked=float(points.accuracy[0]),
                area_shared=area(points, shared),
                shared_heads=shared,
                heads_within_1_point=_before(points, curve.falls),
                heads_before_worse=None if curve.worse is None else _before(points, curve.worse),
                of=curve.scored.right,
            )
        )
    return found


def summary(found: Sequence[Totals]) -> dict[str, float]:
    """The numbers by name, ``<curve>/<split>/<number>``."""
    names = ("area_shared", "shared_heads", "heads_within_1_point", "heads_before_worse")
    return {
        f"{row.curve}/{row.split}/{name}": getattr(row, name)
        for row in found
        for name in names
        if getattr(row, name) is not None
    }


def area(points: Points, until: float) -> float:
    """Mean accuracy from no head masked to ``until`` (trapezoids, straight lines between points)."""
    heads, accuracy = points.heads, points.accuracy
    inside = heads < until
    k = int(inside.sum())  # the first point at or behind the end
    share = (until - heads[k - 1]) / (heads[k] - heads[k - 1])
    end = accuracy[k - 1] + share * (accuracy[k] - accuracy[k - 1])
    x = torch.cat([heads[:k], heads.new_tensor([until])])
    y = torch.cat([accuracy[:k], end[None]])
    return (torch.trapezoid(y, x) / until).item()


def _before(points: Points, dropped: Tensor) -> float:
    """Heads masked at the last point before the first that has dropped."""
    return float(points.heads[: first(dropped)].max())
