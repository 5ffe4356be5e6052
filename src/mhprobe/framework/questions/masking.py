"""Masking curves: accuracy as heads are switched off, in the orders that the configuration names.

Orders are searched on validation images and reported on test images (``select_on="test"``
reproduces papers that did not separate them). Scores of masks are kept in ``cache``, under a key of
weights, data and split, and shared by curves, jobs of a sweep and later runs.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mhprobe import ranks
from mhprobe.data.base import SPLITS
from mhprobe.errors import UserError
from mhprobe.framework.questions.scorers import Scorers
from mhprobe.framework.questions.subject import Subject
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import announce_stage
from mhprobe.masking.base import SHARES
from mhprobe.masking.parts.curve import CurveSpec, Splits, curve_on_splits
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert
from mhprobe.recording.measuring import measure_columns
from mhprobe.report.runs.run import measured_on
from mhprobe.scoring.base import Score
from mhprobe.scoring.parts.evaluate import Evaluator

log = logging.getLogger(__name__)

Keep = Callable[[Any, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]


@dataclass
class Masking:
    """Descriptions of masking curves, and what they have in common.

    specs: by name; for one that does not fit the model, why. cache: the folder of scores.
    select_on: the split that greedy orders are chosen on. steps: the longest curve, None for all
    heads. step: only this point of every curve (for sweeps). join: says of the heads that could go
    whether they are redundant or inert; None to leave that out. score: what is right and what is
    lost; None for the labels, or what the model and the data allow without. key: of the curves, for
    messages.
    """

    specs: Mapping[str, CurveSpec | UserError]
    cache: Path
    select_on: str = "validation"
    steps: int | None = None
    step: int | None = None
    join: RedundantOrInert | None = None
    score: type[Score] | None = None
    key: str = "curves"

    @property
    def splits(self) -> tuple[str, str]:
        """Names of the data's splits that paths are chosen on, and reported on."""
        return SPLITS[self.select_on], "test"

    def named(self, name: str) -> CurveSpec:
        """Return the description of a curve.

        UserError for an unknown one, or one that does not fit the model.
        """
        spec = self.specs.get(
            name, UserError(f"curves: expected some of {', '.join(self.specs)}, got {name}.")
        )
        if isinstance(spec, UserError):
            raise spec
        return spec

    @property
    def shares(self) -> set[str]:
        """Units of cost that curves have targets in, of SHARES."""
        specs = [spec for spec in self.specs.values() if isinstance(spec, CurveSpec)]
        return {unit for spec in specs for unit in spec.target or {}} & {*SHARES}

    def curve(self, name: str, scorers: Scorers) -> list[Curve]:
        """Compute one curve on each split, the same on every rank.

        UserError if it is impossible. A collective.
        """
        spec = self.named(name)
        if scorers.first:
            self._announce(spec, scorers.layout)
        costs = scorers.costs
        select, report = (scorers.on(split).under(spec) for split in (self.select_on, "test"))
        try:
            with _alone(spec, select):
                return curve_on_splits(
                    scorers.layout,
                    spec,
                    select,
                    report,
                    splits=self._splits(spec, scorers),
                    steps=self.steps,
                    step=self.step,
                    costs=costs,
                )
        except UserError as error:
            where, reason = f"{self.key}.{name}", str(error).removeprefix(f"curve {name}: ")
            raise UserError(f"{where}: {reason} To go on without it: ~{where}.") from error

    def _announce(self, spec: CurveSpec, layout: HeadLayout) -> None:
        """Say that a curve begins, and whether it goes stage by stage."""
        number = list(self.specs).index(spec.name) + 1
        announce_stage(f"masking curve {number} of {len(self.specs)}: {spec.name}")
        if make_units(spec.units, layout, spec.exclude_layers).per_stage:
            log.info(
                "%s: stages differ in their heads, so units=%s goes stage by stage",
                spec.name,
                spec.units,
            )

    def _splits(self, spec: CurveSpec, scorers: Scorers) -> Splits:
        """Return the splits of a curve, and the images that its order was chosen on."""
        on = measured_on(spec.order) or self.select_on
        return Splits(self.select_on, "test", chosen_on=on, chosen_by=scorers.on(on).images)

    def masked_heads(
        self, material: Subject, curves: Sequence[Curve], keep: Keep
    ) -> list[MaskedHead]:
        """Measure the heads that the searched curves mask, on the images that the paths were chosen on.

        keep: called with what decides the columns, and a function that finds them, which it may
        have from before.
        """
        whole = [
            c for c in curves if c.split == "test" and c.chosen_on is not None and len(c.step) > 1
        ]
        if self.join is None or not whole:
            return []
        walk, select = (material.walk(split=split) for split in (SPLITS[self.select_on], "val"))
        makers = self.join.measures(material.layout)

        def find() -> dict[str, Tensor]:
            columns, refused = measure_columns(
                material.model, makers, walk, select, class_names=material.data.class_names
            )
            for name, error in refused.items() if material.first else ():
                log.warning("maskable_heads without %s: %s", name, error)
            return {
                f"{name}/{key}": values
                for name, of in columns.items()
                for key, values in of.items()
            }

        columns: dict[str, dict[str, Tensor]] = {}
        for key, values in keep({"masked_heads": self.join, "split": self.select_on}, find).items():
            name, _, column = key.partition("/")
            columns.setdefault(name, {})[column] = values
        return self.join.answer(whole, columns)


def _alone(spec: CurveSpec, select: Evaluator) -> contextlib.AbstractContextManager[None]:
    """Jobs side by side search a curve one after another: all but the first read what was found.

    Not under DDP, where the other ranks of a waiting job would run into the time limit of their
    collectives.
    """
    if select.cache is None or not spec.order.searches or ranks.size() > 1:
        return contextlib.nullcontext()
    return select.cache.alone()
