"""Probe: feeds measures with what the heads did on the test images, or on the validation images every n epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Need
from mhprobe.measures.base import Measure
from mhprobe.report.report import Report
from mhprobe.taps import record


class Probe(L.Callback):
    """One recorded forward (and backward, if a measure needs slopes) per batch, shared by all measures.

    Runs outside the precision plugin's autocast, so measures see full precision.
    every_n_epochs: also probe the validation images after every n-th training epoch; None for the test only.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        report: Report,
        every_n_epochs: int | None = None,
    ) -> None:
        self.measures = dict(measures)
        self.report = report
        self.every_n_epochs = every_n_epochs
        self.active = False
        self.refused: list[UserError] = []  # what could not be computed; the other measures are not held up by it

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start(pl_module)

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._update(pl_module, batch)

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._finish(trainer)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (
            self.every_n_epochs
            and not trainer.sanity_checking
            and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        ):
            self._start(pl_module)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._update(pl_module, batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._finish(trainer, epoch=trainer.current_epoch)

    def _start(self, module: L.LightningModule) -> None:
        self.active = True
        for measure in self.measures.values():
            measure.reset()
            measure.to(module.device)

    def _update(self, module: L.LightningModule, batch: Batch) -> None:
        if not self.active:
            return
        needs = frozenset[Need]().union(*(measure.needs for measure in self.measures.values()))
        heads = record(module, batch.images, batch.labels, needs, batch.valid, batch.index, batch.objects)
        for measure in self.measures.values():
            measure.update(heads)

    def _finish(self, trainer: L.Trainer, epoch: int | None = None) -> None:
        if not self.active:
            return
        self.active = False
        for name, measure in self.measures.items():
            try:
                columns = measure.columns()  # a collective: on every rank, before any of them leaves
            except UserError as error:
                self.refused.append(error)
                continue
            if trainer.is_global_zero:
                on_cpu = {key: value.cpu() for key, value in columns.items()}
                suffix = "" if epoch is None else f"_epoch_{epoch:03d}"
                self.report.add_measure(name, measure.kind, on_cpu, measure.label, measure.also, measure.axes, suffix)
