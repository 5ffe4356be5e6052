"""Masking order by a score: units with the lowest value of a per-head measure go first. No search.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, sec. 4.2: importance is estimated once, or with
``rescore_every`` again on the masked model. A unit's score is the sum over its heads. Any per-head
measure or table of a run gives scores. The control is masking/random.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.files import absent
from mhprobe.io.head_tables import read_column
from mhprobe.masking.base import Evaluate, Order, Path, Units


@dataclass(frozen=True)
class ByScore(Order):
    """Units by the sum of their heads' scores, which come from a measure or from a table.

    measure: makes a per-head measure from a layout; measured on the images that the order is chosen
    on.
    table: or a csv file of a run with a row per head. Measured on the images that the curve is
        reported on, it would make the curve lie too high.
    column: of the measure or of the table. first: the score that goes first, "lowest" or "highest".
    rescore_every: None scores once, with all heads on; k scores the masked model anew after every k
    steps.
    """

    measure: Callable[[HeadLayout], Any] | None = None
    table: str | None = None
    column: str = "value"
    first: Literal["lowest", "highest"] = "lowest"
    rescore_every: int | None = None

    def __post_init__(self) -> None:
        if (self.measure is None) == (self.table is None):
            raise UserError(
                f"{self._asker}: expected a measure or a table, got "
                f"{'both' if self.table else 'neither'}."
            )
        if self.table is not None and not File(self.table).is_file():
            raise UserError(
                f"{self._asker}: {absent(File(self.table))}. Give a table of a run, "
                "<folder>/tables/<name>.csv."
            )
        if self.rescore_every is not None and (self.rescore_every < 1 or self.measure is None):
            raise UserError(
                f"{self._asker}: rescore_every counts steps from 1 and needs a measure, since a "
                "table stays "
                f"as it is; got {self.rescore_every}."
            )

    @property
    def _asker(self) -> str:
        """Name of the order in messages: that of its file."""
        return f"masking order {type(self).__module__.rpartition('.')[2]}"

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """The one path by score.

        Equal scores: lowest unit index first. UserError names a head without a score.
        """
        length = units.steps(steps)
        order: list[int] = []
        scored_at, score = -1, torch.empty(0)
        while len(order) < length and (left := units.candidates(order)):
            due = len(order) // self.rescore_every * self.rescore_every if self.rescore_every else 0
            if due != scored_at:
                score_A = self._of_heads(
                    units.masks.any(0), layout, evaluate, units.masks[order[:due]].any(0)
                )
                scored_at, score = due, units.masks.double() @ score_A.nan_to_num()
            order.append(min(left, key=lambda unit: float(score[unit])))
        return [units.path(order)]

    def _of_heads(
        self, drawable: Tensor, layout: HeadLayout, evaluate: Evaluate, off: Tensor
    ) -> Tensor:
        """(A,) scores, of which the lowest goes first; UserError unless they are finite for ``drawable`` (A,) heads."""
        if self.table is not None:
            score_A = read_column(self.table, self.column, layout, self._asker)
        else:
            assert self.measure is not None
            score_A = evaluate.measure(self.measure, off, self.column)
        refuse_unscored(score_A, drawable, layout, self._asker)
        return score_A.double() if self.first == "lowest" else -score_A.double()


def refuse_unscored(score_A: Tensor, drawable: Tensor, layout: HeadLayout, where: str) -> None:
    """Raise UserError, with ``where``, unless scores are finite for all heads of ``drawable``, (A,) bool."""
    if bad := (drawable & ~score_A.isfinite()).nonzero().flatten().tolist():
        _, head, site = list(layout)[bad[0]]
        raise UserError(
            f"{where}: the score of {site.name} {site.kind} {head} is {float(score_A[bad[0]])}, "
            "expected a number for "
            f"every {site.kind}. Do the weights hold NaN? Or take another score, or exclude its "
            "layer (exclude_layers)."
        )
