"""Greedy search: try every remaining unit on top of those already masked, keep one, repeat.

U units cost U + (U - 1) + ... + 1 evaluations: 78 for the 12 indices of ViT-B, 10,440 for its 144 heads. Every step
is one walk over the data. The search is a plain list of unit indices, so it can be stopped, stored and taken up again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Path, Units


@dataclass(frozen=True)
class GreedySearch:
    """tie_break: among equal accuracies the lowest unit index, or with "loss" the better mean loss before that."""

    tie_break: Literal["index", "loss"] = "index"
    prefers: ClassVar[int]  # +1: the highest score goes first, -1: the lowest
    searches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tie_break not in ("index", "loss"):
            raise UserError(f"masking order: tie_break is index or loss, got {self.tie_break!r}.")

    def length(self, units: Units, layout: HeadLayout) -> int:
        return len(units)

    def paths(
        self,
        units: Units,
        layout: HeadLayout,
        evaluate: Evaluate,
        steps: int | None = None,
        start: Sequence[int] = (),
        on_step: Callable[[list[int]], None] | None = None,
    ) -> list[Path]:
        """The one greedy path, searched from the end of ``start`` up to ``steps`` units."""
        length = len(units) if steps is None else min(steps, len(units))
        order = list(start)[:length]
        if len(set(order)) < len(order) or not set(order) <= set(range(len(units))):
            raise UserError(
                f"masking order: a search starts from different units between 0 and {len(units) - 1}, got {order}."
            )
        while len(order) < length:
            candidates = [unit for unit in range(len(units)) if unit not in order]
            scores = evaluate(units.masks[order].any(0) | units.masks[candidates])
            merit = [
                (self.prefers * correct, -self.prefers * loss if self.tie_break == "loss" else 0.0)
                for correct, loss in zip(scores.correct.tolist(), scores.loss.tolist(), strict=True)
            ]
            order.append(candidates[merit.index(max(merit))])  # index() finds the first: the lowest unit of a tie
            if on_step is not None:
                on_step(order.copy())
        return [Path(None, units.masks[order], tuple(units.names[unit] for unit in order))]
