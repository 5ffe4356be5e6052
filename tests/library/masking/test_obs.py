"""OBS: rises of the loss against least squares over all weights, redundancy, and a repaired network that loses less."""

from __future__ import annotations

import pytest
import timm
import torch
from omegaconf import OmegaConf

import mhprobe
from mhprobe.backbones import family_of
from mhprobe.data.batch import Batch
from mhprobe.framework.run.cli import CONF
from mhprobe.framework.run.construct import construct
from mhprobe.heads import KINDS
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.obs import RIDGE, LossInTurn, losses_in_turn
from mhprobe.pruning.on_path import OnPath
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.surgery.repair import repair
from models import images_for, labels_for, make_loud
from oracles import obs as oracle

IMAGES = 12
SIZES = {
    "patch_size": 8,
    "embed_dim": 12,
    "num_heads": 3,
    "depth": 2,
    "mlp_ratio": 0.75,
    "num_classes": 5,
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, **SIZES).double().eval()
    make_loud(model, 0.3)
    mhprobe.attach(model, units=KINDS)
    return model


@pytest.fixture(scope="module")
def evaluate(model):
    images, labels = images_for(model, IMAGES, dtype=torch.float64), labels_for(IMAGES)
    everyone = torch.arange(IMAGES)
    walk = [
        Batch(images[i], labels[i], i, torch.ones(len(i), dtype=torch.bool))
        for i in everyone.split(5)
    ]
    return Evaluator(model, lambda: walk, IMAGES)


def test_each_rise_is_the_least_over_all_changes_of_the_other_weights(model, evaluate):
    layout = mhprobe.attach(model).layout
    found = layout.split(
        evaluate.measure(LossInTurn, torch.zeros(layout.num_heads, dtype=torch.bool))
    )
    images, labels = images_for(model, IMAGES, dtype=torch.float64), labels_for(IMAGES)
    for site, rises in zip(layout.sites, found, strict=True):
        layer = family_of(model).seam(model, site).output
        inputs, slopes = oracle.looked(model, layer, images, labels)
        expected = oracle.in_turn(
            layer.weight.detach(), inputs, slopes, IMAGES, site.head_dim, RIDGE
        )
        # lstsq of a matrix of condition up to 1 / RIDGE**2 on one side, inverses on the other
        torch.testing.assert_close(rises, rises.new_tensor(expected), rtol=1e-5, atol=1e-12)
        assert rises.max() > 1.5 * rises.min() > 0  # the control


def test_of_two_units_that_say_the_same_one_is_free_and_then_the_other_is_dear():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.stack([x[:, 0], x[:, 1], x[:, 0]], 1)
    slopes = torch.eye(3, dtype=torch.float64)
    losses = losses_in_turn(torch.cov(x.T), slopes, 1)
    first, other = sorted([float(losses[0]), float(losses[2])])
    assert (
        first < 1e-3 and 0.8 < other < 1.2
    )  # of x[0] both writes, 2 var / 2, are lost with the second
    assert 0.4 < losses[1] < 0.6  # var / 2, of one that nobody can replace


@torch.no_grad()
def test_what_obs_keeps_is_nearer_to_the_whole_once_repaired(model, evaluate):
    layout = mhprobe.attach(model).layout
    images = images_for(model, IMAGES, dtype=torch.float64)
    whole = model(images)

    def error(order):
        source = OnPath(order, target={"flops": 0.8})
        mask = source.choose(model, evaluate, lambda: images[:1], layout, 1.0, 1.0)[0].mask
        small = mhprobe.prune_heads(model, mask)
        repair(small, model, lambda: [images])
        return float((small(images) - whole).square().mean()), mask

    (obs, mask), (shuffled, other) = (
        error(Knapsack(LossInTurn, first=first)) for first in ("lowest", "highest")
    )
    assert not mask.equal(other) and obs < 0.5 * shuffled


def test_it_prunes_by_its_name_and_padding_changes_nothing(model, evaluate):
    named = OmegaConf.to_container(OmegaConf.load(CONF / "prune" / "order" / "obs.yaml"))
    layout = mhprobe.attach(model).layout
    for options in ({}, {"multiple": 3}):
        source = OnPath(construct({**named, **options}, "prune.order"), target={"flops": 0.7})
        mask = source.choose(
            model, evaluate, lambda: images_for(model, 1).double(), layout, 1.0, 1.0
        )[0].mask
        assert mask.any() and not mask.all()
    left = zip(layout.split(~mask), layout.sites, strict=True)
    assert all(int(part.sum()) % 3 == 0 for part, site in left if site.kind == "neuron")
    images, labels = images_for(model, 3, dtype=torch.float64), labels_for(3)
    found = []
    for shown, valid in ((images[:2], [True, True]), (images, [True, True, False])):
        measure = LossInTurn(layout)
        measure.update(
            mhprobe.record(model, shown, labels[: len(shown)], {"grad"}, torch.tensor(valid))
        )
        found.append(measure.compute())
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
