"""Greedy search: try every remaining unit on top of those already masked, keep one, repeat.

U units cost U + (U - 1) + ... + 1 evaluations: 78 for the 12 indices of ViT-B, 10,440 for its 144
heads. A ``search`` (masking/search) finds the unit of a step with all of them, or with fewer.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path, Scores, Units
from mhprobe.masking.search.auto import Auto
from mhprobe.masking.search.base import Search, SearchStep, search_name


@dataclass(frozen=True)
class GreedySearch(Order):
    """Greedy search: one more unit at each step, found by ``search``.

    tie_break: among equal accuracies the lowest unit index, or with "loss" the better mean loss
    before that.
    """

    prefers: ClassVar[int]  # +1: the highest score goes first, -1: the lowest
    tie_break: Literal["index", "loss"] = "index"
    search: Search = field(default_factory=Auto)

    def search_name(self, units: Units) -> str:
        return search_name(self._search(units))

    def _search(self, units: Units) -> Search:
        return self.search.of(units.masks) if isinstance(self.search, Auto) else self.search

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        length = units.steps(steps)
        search = self._search(units)
        order = list[int]()
        spent = list[int]()
        exhaustive = [
            (len(units) - number) * evaluate.images for number in range(length)
        ]  # at most: without limits
        before: Scores | None = None
        with evaluate.watched(sum(exhaustive)) as say:
            while len(order) < length and (candidates := units.candidates(order)):
                number, paid = len(order), evaluate.spent
                exhaustive[number] = len(candidates) * evaluate.images
                now = f", {100 * before.accuracy.max():.1f} % so far" if before is not None else ""
                say(
                    f"step {number + 1} of {length}, {len(candidates)} candidates{now}",
                    sum(exhaustive[:number]),
                )
                off = units.masks[order].any(0)
                step = SearchStep(
                    off,
                    units.masks[candidates],
                    self.prefers,
                    self.tie_break == "loss",
                    number,
                    before,
                )
                choice = search.choose(step, evaluate)
                before = choice.scores
                if before is not None:
                    evaluate.keep(off | units.masks[candidates[choice.candidate]], before)
                order.append(candidates[choice.candidate])
                spent.append(evaluate.spent - paid)
        return [units.path(order, spent=tuple(spent), exhaustive=tuple(exhaustive[: len(order)]))]
