"""What pruning still asks for as one object: a run that was put together by mhprobe.run.builders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from mhprobe.classifier import GatedClassifier
from mhprobe.run import builders
from mhprobe.run.construct import construct
from mhprobe.weights.checkpoint import gates_kept, load_weights


class Session:
    """A run without measures and curves, writing into ``folder``.

    gates_kept: (A,) bool, the heads that the loaded weights' learned gates keep, as their run decided; None without.
    """

    def __init__(self, task: str, cfg: builders.Config, folder: Path) -> None:
        self.task, self.cfg, self.folder = task, cfg, folder
        self.data = builders.data(cfg)
        self.classifier = builders.classifier(cfg, self.data)
        self.gates_kept = gates_kept(load_weights(cfg["weights"])[1]) if builders.has_weights(cfg) else None
        self.report = builders.report(cfg, folder, self.classifier.gates.layout)
        self.trainer: L.Trainer = builders.trainer(cfg, [], self.report)

    def make(self, part: dict[str, Any], where: str) -> Any:
        return construct(part, where)

    def retrain(self, backbone: nn.Module, description: dict[str, Any], epochs: int, checkpoints: Path) -> Any:
        """Train a network that stands in for the loaded one, e.g. a pruned one; returns it, best on validation."""
        cfg = {**self.cfg, "trainer": {**self.cfg["trainer"], "max_epochs": epochs}, "measure": None}
        model = GatedClassifier(backbone, description, **cfg["optim"])
        callbacks = builders.callbacks(cfg, model, self.data, self.report, checkpoints)
        trainer = builders.trainer(cfg, callbacks, self.report)
        trainer.fit(model, datamodule=self.data)
        builders.best(model, checkpoints)
        return model.backbone

    def close(self) -> None:
        self.report.close()
        metrics = self.report.metrics
        print(f"test accuracy {100 * metrics['test/accuracy']:.2f} % of {metrics['test/images']} images")
        print(f"tables and figures: {self.folder}")
