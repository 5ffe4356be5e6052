"""Masking one head at a time: counts by hand, signs, and what a head that does nothing is worth."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy import stats

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.base import NotOfNeurons, fitted
from models import BUILDERS, images_for, labels_for, make_loud
from oracles.ablation import outcome, without
from oracles.ablation_delta import of_neurons

LAYOUT = HeadLayout((HeadSite("a", 0, 0, 2, 3), HeadSite("b", 1, 1, 1, 3)))


def batch(measure, whole, masked, labels, valid=None) -> HeadBatch:
    """Logits of two classes from the margin of class 0. whole: (B,), masked: (A, B)."""

    def logits(margin):
        return torch.stack([margin, torch.zeros_like(margin)], -1)

    whole, masked = torch.as_tensor(whole).double(), torch.as_tensor(masked).double()
    return HeadBatch(
        z=(),
        logits=logits(whole),
        labels=torch.tensor(labels),
        valid=torch.ones(len(whole), dtype=torch.bool) if valid is None else torch.tensor(valid),
        ablated={measure.ablation: logits(masked)},
    )


def test_counts_and_shares_by_hand():
    measure = AblationDelta(LAYOUT)
    labels = [0, 0, 0, 1]
    # right without a mask: images 0, 1, 3
    whole = [2, 2, -2, -2]
    masked = [[2, -2, -2, -2], [2, 2, 2, -2], [-2, -2, 2, 2]]
    measure.update(batch(measure, whole, masked, labels))
    got = measure.columns()
    assert got["accuracy"] == 0.75
    assert got["lost"].tolist() == [1, 0, 3] and got["won"].tolist() == [0, 1, 1]
    assert got["drop"].tolist() == [0.25, -0.25, 0.5]
    torch.testing.assert_close(
        got["by_class"], torch.tensor([[1 / 3, 0], [-1 / 3, 0], [1 / 3, 1]]).double()
    )
    assert measure.axes == {
        key: ["class 0", "class 1"] for key in ("by_class", "class_p_holm", "class_accuracy")
    }
    assert got["class_accuracy"].tolist() == [[pytest.approx(2 / 3), 1.0]] * 3
    assert (got["class_p_holm"] == 1).all()  # one or three images that change say nothing
    expected = [stats.binomtest(b, b + c).pvalue for b, c in ((1, 1 - 1), (0, 1), (3, 1))]
    assert got["p"].tolist() == pytest.approx(expected)
    assert (got["p_holm"] >= got["p"]).all()
    # each flip of a margin from 2 to -2 costs 2 nats of loss exactly: log(1 + e^2) - log(1 + e^-2)
    assert got["value"].tolist() == pytest.approx([0.5, -0.5, 1.0])
    assert got["standard_error"][0].item() == pytest.approx(
        torch.tensor([0.0, 2, 0, 0]).std().item() / 2
    )
    assert ((got["drop_low"] < got["drop"]) & (got["drop"] < got["drop_high"])).all()


def test_the_interval_of_the_loss_is_a_bootstrap_that_stays_where_losses_are():
    """One image of 40 loses much and none gains: a normal interval reaches below 0, as if some had gained."""
    measure = AblationDelta(LAYOUT)
    much = [-80.0] + [0.0] * 39
    shown = batch(measure, [0.0] * 40, [much] * 3, [0] * 40)
    measure.update(
        dataclasses.replace(shown, images=torch.arange(40.0).view(40, 1, 1, 1))
    )  # told apart by their pixels
    got = measure.columns()
    assert (got["value"] > 1.9).all() and (got["value"] - 1.96 * got["standard_error"] < -1.5).all()
    assert (got["low"] >= 0).all() and (got["high"] > got["value"]).all()


def test_names_of_classes_are_the_data_sets_where_they_are_known():
    measure = AblationDelta(LAYOUT)
    measure.class_names = ("cat", "dog")
    measure.update(batch(measure, [1, 1], [[1, 1]] * 3, [0, 1]))
    assert measure.axes["by_class"] == ["cat", "dog"]


def test_a_class_that_a_head_carries_is_found_among_all_cells():
    """Ten of ten images of class 0 go wrong without head 1: p = 2 / 2^10, times six cells."""
    measure = AblationDelta(LAYOUT)
    labels = [0] * 10 + [1] * 10
    whole = [1] * 10 + [-1] * 10  # all right
    measure.update(batch(measure, whole, [whole, [-1] * 20, whole], labels))
    p = measure.columns()["class_p_holm"]
    assert p[1, 0].item() == pytest.approx(6 * 2 / 2**10)
    assert (p.flatten()[[0, 1, 3, 4, 5]] == 1).all()


def test_classes_without_images_are_no_tests():
    """Each counted as one that found nothing, so the images of two classes of a thousand could show nothing."""
    measure = AblationDelta(LAYOUT)
    whole = [1] * 10
    measure.update(batch(measure, whole, [whole, [-1] * 10, whole], [0] * 10))  # none of class 1
    p = measure.columns()["class_p_holm"]
    assert p[1, 0].item() == pytest.approx(3 * 2 / 2**10) and p[:, 1].isnan().all()


def test_a_class_without_images_has_no_number():
    measure = AblationDelta(LAYOUT)
    measure.update(batch(measure, [1, 1], [[1, -1]] * 3, [0, 0]))
    assert measure.columns()["by_class"][:, 1].isnan().all()
    assert measure.columns()["by_class"][:, 0].tolist() == [0.5] * 3


def test_a_rank_that_saw_only_padding_has_sums_of_the_same_shape():
    first, second = AblationDelta(LAYOUT), AblationDelta(LAYOUT)
    first.update(batch(first, [1, -1], [[1, -1]] * 3, [0, 1]))
    second.update(batch(second, [1, -1], [[1, -1]] * 3, [0, 1], valid=[False, False]))
    assert {name: state.shape for name, state in first.metric_state.items()} == {
        name: state.shape for name, state in second.metric_state.items()
    }


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_accuracy_columns_are_those_of_models_without_the_head(build):
    model, bare = build().double(), build().double()
    for part in (model, bare):
        torch.manual_seed(0)
        for parameter in part.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    images, labels = images_for(model, 24, dtype=torch.float64), labels_for(24)
    layout = mhprobe.attach(model).layout
    measure = AblationDelta(layout)
    for i in range(0, 24, 7):
        measure.update(mhprobe.record(model, images[i : i + 7], labels[i : i + 7], measure.needs))
    got = measure.columns()
    sites = [(site.name, site.num_heads) for site in layout.sites]
    right = torch.tensor(outcome(bare, images, labels)[0])
    assert got["accuracy"].item() == right.double().mean().item()
    for head in range(layout.num_heads):
        other = torch.tensor(outcome(without(bare, sites, {head}), images, labels)[0])
        assert (
            got["lost"][head] == (right & ~other).sum()
            and got["won"][head] == (~right & other).sum()
        )
    assert got["lost"].sum() + got["won"].sum() > 0  # masking does something


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_neurons_have_the_numbers_of_their_part_of_the_layer_and_heads_their_own(build):
    """Beside neurons heads say what they say alone, and blocks before the masked one are run once."""
    model, bare = build().double(), build().double()
    for part in (model, bare):
        make_loud(part, 0.4)
    images, labels, bins = images_for(model, 10, dtype=torch.float64), labels_for(10), 7
    layout = mhprobe.attach(model, units=KINDS).layout
    measure, other = (AblationDelta(layout, bins=bins) for _ in range(2))
    alone = fitted(AblationDelta, layout)
    for start, fed in ((0, measure), (4, other)):
        shown = slice(start, 10 if start else 4)
        fed.update(mhprobe.record(model, images[shown], labels[shown], measure.needs))
    measure.merge_state(other)  # of two ranks
    alone.update(mhprobe.record(model, images, labels, alone.needs))
    got, heads = measure.columns(), layout.of("head").num_heads
    mlps = [site.name for site in layout.of("neuron").sites]
    expected = of_neurons(bare, images, labels, mlps, bins)
    torch.testing.assert_close(got["value"][heads:], expected, rtol=1e-8, atol=1e-9)
    assert len(expected.unique()) == bins * len(mlps)
    torch.testing.assert_close(got["value"][:heads], alone.columns()["value"], rtol=1e-8, atol=1e-9)
    assert all(
        len(values) == layout.num_heads
        for name, values in got.items()
        if name not in ("accuracy", "images")
    )
    assert len(measure.ablation.masks) == heads + bins * len(mlps)
    with pytest.raises(NotOfNeurons, match="ablation_delta: is of heads"):
        AblationDelta(layout)
    with pytest.raises(
        UserError, match="ablation_delta: bins: expected a whole number of at least 0, got -1"
    ):
        AblationDelta(layout, bins=-1)


def test_a_silent_head_is_worth_nothing():
    model = BUILDERS["vit"]()
    with torch.no_grad():
        model.blocks[1].attn.proj.weight[:, 8:16] = 0
    layout = mhprobe.attach(model).layout
    measure = AblationDelta(layout)
    measure.update(mhprobe.record(model, images_for(model, 9), labels_for(9), measure.needs))
    got = measure.columns()
    silent = layout.flat(1, 1)
    # the masked forward may add in another order
    assert abs(got["value"][silent]) < 1e-6 and got["drop"][silent] == 0 and got["p"][silent] == 1
    assert got["value"].abs().sort().values[1] > 1e-5


def test_one_image_has_no_interval_and_no_labels_are_refused():
    measure = AblationDelta(LAYOUT)
    one = batch(measure, [1], [[1], [-1], [1]], [0])
    measure.update(one)
    assert math.isnan(measure.columns()["low"][0])
    with pytest.raises(UserError, match=r"^ablation_delta: the batch has no labels"):
        AblationDelta(LAYOUT).update(
            HeadBatch(z=(), logits=one.logits, valid=one.valid, ablated=one.ablated)
        )


@pytest.mark.peer
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_the_rise_of_the_loss_is_captums_feature_ablation_of_the_gates(build):
    attr = pytest.importorskip("captum.attr")
    model = build().double()
    gates = mhprobe.attach(model)
    images, labels = images_for(model, 6, dtype=torch.float64), labels_for(6)

    def loss(values):
        with torch.no_grad():
            gates.values.copy_(values[0])
            return torch.nn.functional.cross_entropy(model(images), labels)[None]

    # Captum gives the loss with the feature minus without it
    expected = -attr.FeatureAblation(loss).attribute(torch.ones(1, gates.layout.num_heads))[0]
    gates.values.data.fill_(1)
    measure = AblationDelta(gates.layout)
    measure.update(mhprobe.record(model, images, labels, measure.needs))
    torch.testing.assert_close(
        measure.compute(), expected.double(), rtol=1e-5, atol=1e-7
    )  # Captum's is in float32
    assert expected.abs().max() > 2e-5
