"""Learning rates for loggers: at most two curves, whatever the number of the optimizer's groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.framework.training.rates import LearningRates, rates_of
from models import tiny_vit


def groups_of(model, rates):
    """A group for each weight of the network, of these rates in turn."""
    weights = list(model.backbone.parameters())
    return [
        {"params": [weight], "lr": rates[number % len(rates)]}
        for number, weight in enumerate(weights)
    ]


def test_many_groups_are_one_curve_at_the_highest_rate():
    model = GatedClassifier(tiny_vit(), {})
    groups = groups_of(model, [0.1, 0.3, 0.2])
    assert len(groups) > 2
    assert rates_of(model, groups) == {"lr/network": pytest.approx(0.3)}


def test_learned_gates_have_a_curve_of_their_own_and_prices_have_none():
    model = GatedClassifier(tiny_vit(), {})
    gate, price = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    model.gates.register_parameter("learned", gate)
    others = [{"params": [gate], "lr": 5.0}, {"params": [price], "lr": 9.0}]
    rates = rates_of(model, [*groups_of(model, [0.1]), *others])
    assert rates == {"lr/network": pytest.approx(0.1), "lr/gates": pytest.approx(5.0)}


def test_rates_are_logged_once_in_the_steps_that_loggers_record():
    model, logged = GatedClassifier(tiny_vit(), {}), []
    logger = SimpleNamespace(log_metrics=lambda rates, step: logged.append((step, rates)))
    optimizer = SimpleNamespace(param_groups=groups_of(model, [0.1]))
    trainer = SimpleNamespace(log_every_n_steps=3, loggers=[logger], optimizers=[optimizer])
    callback = LearningRates()
    for batch in range(14):  # two batches a step: gradients accumulate
        trainer.global_step = batch // 2
        callback.on_train_batch_start(trainer, model, None, batch)
    assert [step for step, _ in logged] == [2, 5]
