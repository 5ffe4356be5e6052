"""Beam search: keep the w best sets of masked units at every step, where greedy search keeps one.

Width 1 is greedy keep-best. A step scores every remaining unit on top of each of the w sets. A set
that several paths lead to is scored once; the path with the better mean score is kept. The result
is the path to the best set of the last step; a longer path may begin with other units.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from mhprobe.errors import Positive
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path, Units


class _Way(NamedTuple):
    order: tuple[int, ...]  # of unit indices
    correct: int  # images right at its end
    area: int  # the sum of that over its steps


@dataclass(frozen=True)
class Beam(Order):
    """Greedy search that keeps ``width`` sets of masked units at every step; 1 is ``KeepBest``."""

    width: Positive = 4

    def search_name(self, units: Units) -> str:
        return f"beam of {self.width}"

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """The way to the best set of ``steps`` units.

        Ties: more images right on the way, then lower unit indices.
        """
        length = units.steps(steps)
        ways = [_Way((), 0, 0)]
        for _ in range(length):
            longer: dict[frozenset[int], tuple[int, ...]] = {}
            for way in sorted(ways, key=lambda way: (-way.area, way.order)):
                for unit in units.candidates(way.order):
                    longer.setdefault(frozenset((*way.order, unit)), (*way.order, unit))
            if not longer:
                break
            area = {way.order: way.area for way in ways}
            orders = list(longer.values())
            correct = evaluate(
                torch.stack([units.masks[list(order)].any(0) for order in orders])
            ).correct.tolist()
            longest = [_Way(o, c, area[o[:-1]] + c) for o, c in zip(orders, correct, strict=True)]
            ways = sorted(longest, key=lambda way: (-way.correct, -way.area, way.order))[
                : self.width
            ]
        return [units.path(ways[0].order)]
