"""MaskingCurve: how accuracy falls as heads are switched off, in the orders that the configuration names.

Orders that look at scores are searched on the validation images and reported on the test images
(``select_on="test"`` reproduces papers that did not separate them). What is asked about masks is kept in ``cache``,
under a key of weights, data and split: curves and the jobs of a sweep share it, and a run that was killed finds there
what it knew.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch

from mhprobe import ranks
from mhprobe.callbacks.maskable import Maskable
from mhprobe.data.base import ImageData
from mhprobe.gates import gates_of
from mhprobe.masking.base import Evaluate
from mhprobe.masking.cache import MaskCache, cache_key
from mhprobe.masking.curve import CurveSpec, Row, masking_curve, summary, totals
from mhprobe.masking.limits import Cost
from mhprobe.masking.units import make_units
from mhprobe.report.report import Report
from mhprobe.report.tables import as_text, curves
from mhprobe.scoring.evaluate import evaluator

SPLITS = {"validation": "val", "test": "test"}


class MaskingCurve(L.Callback):
    """Draws every curve of ``specs`` at the end of the test.

    cache: the folder of scores. select_on: the split that greedy orders are chosen on.
    steps: the longest curve, None for all heads. step: only this point of every curve (for sweeps).
    join: says of the heads that could go whether they are redundant or inert; None to leave that out.
    """

    def __init__(
        self,
        specs: Sequence[CurveSpec],
        report: Report,
        cache: Path,
        select_on: str = "validation",
        steps: int | None = None,
        step: int | None = None,
        join: Maskable | None = None,
    ) -> None:
        self.specs = specs
        self.report = report
        self.cache = cache
        self.select_on, self.steps, self.step = select_on, steps, step
        self.join = join

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        layout = gates_of(pl_module).layout
        data = _data(trainer)
        identity = {"weights": _digest(pl_module), "data": data.fingerprint}
        costs = self._costs(pl_module, data)
        rows: list[Row] = []
        for spec in self.specs:
            if trainer.is_global_zero and make_units(spec.units, layout, spec.exclude_layers).per_stage:
                print(f"{spec.name}: stages differ in their heads, so units={spec.units} goes stage by stage")
            select, report = (
                self._evaluator(trainer, pl_module, split, spec, identity) for split in (self.select_on, "test")
            )
            rows += masking_curve(
                layout,
                spec,
                select,
                report,
                splits=(self.select_on, "test"),
                steps=self.steps,
                step=self.step,
                costs=costs,
            )
        if trainer.is_global_zero:
            self.report.add_curves(rows, chance=1 / data.num_classes)
            self.report.add_metrics(summary(rows))
            if found := totals(rows):
                self.report.add_table("masking_totals", curves(found))
                print(as_text(curves(found)))
        if self.join is not None and self.step is None:
            searched = [row for row in rows if row["split"] == "test" and row["seed"] == ""]
            names = dict.fromkeys(row["curve"] for row in searched)
            paths = [[row for row in searched if row["curve"] == name] for name in names]
            batches = functools.partial(data.batches, SPLITS[self.select_on], pl_module.device)
            self.join.report(trainer, pl_module, batches, paths, self.report)

    def _evaluator(
        self, trainer: L.Trainer, module: L.LightningModule, split: str, spec: CurveSpec, identity: dict[str, Any]
    ) -> Evaluate:
        name, data = SPLITS[split], _data(trainer)
        batches = functools.partial(data.batches, name, module.device)
        return evaluator(
            module,
            batches,
            data.sizes[name],
            label=f"{spec.name} on {split}",
            show=trainer.is_global_zero,
            pick=batches,
            rescale=spec.rescale,
            cache=MaskCache(self.cache, cache_key(**identity, split=name, rescale=spec.rescale)),
        )

    def _costs(self, module: L.LightningModule, data: ImageData) -> dict[str, Cost]:
        """What masks leave of the dense model's FLOPs and time, for the targets that ask."""
        from mhprobe.surgery.costs import costs, head_shares

        asked = {unit for spec in self.specs for unit in spec.target or {}}
        if not asked & {"flops", "latency"}:
            return {}
        images = next(iter(data.batches("val", module.device))).images
        shares = head_shares(cast(torch.nn.Module, module.backbone), gates_of(module).layout, images, asked)
        # times differ from process to process, and all have to stop at the same step
        return costs(ranks.from_rank_zero(lambda: shares))


def _data(trainer: L.Trainer) -> ImageData:
    return trainer.datamodule  # type: ignore[attr-defined]


def _digest(module: L.LightningModule) -> str:
    """sha256 over the bits of all weights and gates."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor) and key.startswith(("backbone.", "gates.")):
            digest.update(
                key.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()
