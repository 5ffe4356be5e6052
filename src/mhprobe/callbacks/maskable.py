"""Maskable: what are the heads that a curve could do without, redundant or inert? (masking/join.py has the answer.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import lightning as L
from torch import Tensor

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout
from mhprobe.masking.curve import Row
from mhprobe.masking.join import INERT, REDUNDANT, Similarity, join
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import measure
from mhprobe.report.report import Report

MakeMeasure = Callable[[HeadLayout], Measure]


class Maskable:
    """Joins the rows of curves with how alike heads are and how much they write, on the selection split.

    similar, distant: pairwise measures by the name they get in the table; of the latter 1 - value is the similarity.
    writes: a per-head measure of what a head adds to the residual stream. redundant, inert: see masking/join.py.
    """

    def __init__(
        self,
        writes: MakeMeasure,
        similar: Mapping[str, MakeMeasure],
        distant: Mapping[str, MakeMeasure] | None = None,
        redundant: float = REDUNDANT,
        inert: float = INERT,
    ) -> None:
        self.writes, self.similar, self.distant = writes, dict(similar), dict(distant or {})
        self.redundant, self.inert = redundant, inert
        if not self.similar and not self.distant:
            raise UserError("masking.join: name at least one pairwise measure under similar or distant.")

    def report(
        self,
        trainer: L.Trainer,
        module: L.LightningModule,
        batches: Callable[[], Iterable[Batch]],
        curves: Sequence[Sequence[Row]],
        report: Report,
    ) -> None:
        """``tables/maskable_heads.csv`` and a figure per similarity. curves: the rows of one path each.

        A collective. A measure that cannot say anything is left out, with its reason in one line.
        """
        similarities, write_norm = self._measure(trainer, module, batches)
        if not trainer.is_global_zero or not similarities or write_norm is None:
            return
        rows = [
            row
            for points in curves
            if len(points) > 1
            for row in join(points, similarities, write_norm, self.redundant, self.inert)
        ]
        report.add_maskable(rows, list(similarities), self.redundant, self.inert)

    def _measure(
        self, trainer: L.Trainer, module: L.LightningModule, batches: Callable[[], Iterable[Batch]]
    ) -> tuple[dict[str, Similarity], Tensor | None]:
        layout = gates_of(module).layout
        makers = {"writes": self.writes, **self.similar, **self.distant}
        columns, refused = measure(module, {name: make(layout) for name, make in makers.items()}, batches)
        if trainer.is_global_zero:
            for name, error in refused.items():
                print(f"maskable_heads without {name}: {error}")
        similarities = {
            name: Similarity(found["value"], found.get("null"))
            for name, found in columns.items()
            if name in self.similar
        }
        for name in self.distant:
            if name in columns:
                null = columns[name].get("null")
                similarities[name] = Similarity(1 - columns[name]["value"], None if null is None else 1 - null)
        return similarities, columns.get("writes", {}).get("value")
