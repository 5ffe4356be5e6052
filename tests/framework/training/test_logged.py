"""What a step logs is the mean over all processes, and they wait for each other only in steps that loggers record."""

from __future__ import annotations

import pytest
import torch

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.framework.training.classifier import GatedClassifier
from models import tiny_vit


class Trainer:
    global_step, log_every_n_steps = 0, 3


def test_processes_meet_only_in_steps_that_loggers_record(monkeypatch):
    """Lightning's sync_dist lets them meet in every step, behind a barrier."""
    model, trainer, met, logged = GatedClassifier(tiny_vit(), {}), Trainer(), [], []
    model.trainer, model.log = trainer, lambda _, value, **__: logged.append(float(value))
    monkeypatch.setattr(ranks, "size", lambda: 2)
    monkeypatch.setattr(
        ranks, "total", lambda value: met.append(trainer.global_step) or value.add_(3)
    )  # the other's
    images, index = (
        torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
        torch.arange(4),
    )
    losses = []
    for trainer.global_step in range(7):
        batch = Batch(images, index % 2, index, torch.ones(4, dtype=torch.bool))
        losses.append(model.training_step(batch, trainer.global_step).item())
    assert met == [2, 5]  # the third step and the sixth
    mean = [(loss + 3) / 2 if step in met else loss for step, loss in enumerate(losses)]
    assert logged == pytest.approx(mean, rel=1e-6)
    assert len(set(losses)) == 1  # the control: what is logged is no part of what is learned from
