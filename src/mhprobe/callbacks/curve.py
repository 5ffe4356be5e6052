"""MaskingCurve: how accuracy falls as heads are switched off, in the orders that the configuration names.

Orders that look at scores are searched on the validation images and reported on the test images
(``select_on="test"`` reproduces papers that did not separate them). A search is kept in ``store`` step by step, under
a key of weights, data and order: a sweep over steps, or a run that was killed, goes on from what is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch

from mhprobe.data.base import ImageData
from mhprobe.evaluate import evaluator
from mhprobe.gates import gates_of
from mhprobe.masking.base import Evaluate
from mhprobe.masking.curve import CurveSpec, Row, masking_curve, summary
from mhprobe.masking.store import OrderStore
from mhprobe.masking.units import make_units
from mhprobe.report.report import Report

SPLITS = {"validation": "val", "test": "test"}


class MaskingCurve(L.Callback):
    """Draws every curve of ``specs`` at the end of the test.

    select_on: the split that greedy orders are chosen on.
    steps: the longest curve, None for all heads. step: only this point of every curve (for sweeps).
    """

    def __init__(
        self,
        specs: Sequence[CurveSpec],
        report: Report,
        store: Path,
        select_on: str = "validation",
        steps: int | None = None,
        step: int | None = None,
    ) -> None:
        self.specs = specs
        self.report = report
        self.store = store
        self.select_on, self.steps, self.step = select_on, steps, step

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        layout = gates_of(pl_module).layout
        data = _data(trainer)
        identity = {"weights": _digest(pl_module), "data": data.fingerprint}
        store = OrderStore(self.store, share=_from_rank_zero if trainer.world_size > 1 else None)
        rows: list[Row] = []
        for spec in self.specs:
            if trainer.is_global_zero and make_units(spec.units, layout, spec.exclude_layers).per_stage:
                print(f"{spec.name}: stages differ in their heads, so units={spec.units} goes stage by stage")
            rows += masking_curve(
                layout,
                spec,
                self._evaluator(trainer, pl_module, self.select_on, spec.name),
                self._evaluator(trainer, pl_module, "test", spec.name),
                splits=(self.select_on, "test"),
                store=store,
                identity=identity,
                steps=self.steps,
                step=self.step,
            )
        if trainer.is_global_zero:
            self.report.add_curves(rows, chance=1 / data.num_classes)
            self.report.add_metrics(summary(rows))

    def _evaluator(self, trainer: L.Trainer, module: L.LightningModule, split: str, label: str) -> Evaluate:
        name, data = SPLITS[split], _data(trainer)
        return evaluator(
            module,
            lambda: data.batches(name, module.device),
            data.sizes[name],
            label=f"{label} on {split}",
            show=trainer.is_global_zero,
        )


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


def _from_rank_zero(order: list[int]) -> list[int]:
    shared = [order]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]
