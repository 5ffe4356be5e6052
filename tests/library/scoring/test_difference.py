"""The score of networks of one output: it sees what the cosine of a single number cannot."""

from __future__ import annotations

import pytest
import torch

import mhprobe
from mhprobe.scoring.difference import Difference
from models import images_for, make_loud, tiny_vit

COUNT = 12


def regression(**settings):
    model = tiny_vit(num_classes=1, **settings)
    make_loud(model, 0.3)
    return model


def test_a_masked_regression_has_the_squared_change_in_variances_as_its_loss():
    model = regression()
    images = images_for(model, COUNT)
    rows = mhprobe.masking_curve(model, [images], units="layer", score="difference")
    with torch.no_grad():
        whole = model(images).double()
        for row in rows:
            gates = mhprobe.attach(model)
            with gates.masked(gates.layout.mask([*map(int, row["masked"].split())])):
                change = (model(images).double() - whole).square().mean()
            expected = float(change / whole.var(unbiased=False))
            assert row["loss"] == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert rows[0]["loss"] == 0 and rows[0]["accuracy"] == 1
    assert rows[-1]["loss"] > 0.01 and rows[-1]["accuracy"] < 1


@pytest.mark.parametrize("classes", [0, 5])
def test_features_and_several_logits_have_it_too(classes):
    model = tiny_vit(num_classes=classes)
    make_loud(model, 0.3)
    rows = mhprobe.masking_curve(
        model, [images_for(model, COUNT)], units="layer", score="difference"
    )
    assert rows[0]["loss"] == 0 < rows[-1]["loss"]


@pytest.mark.parametrize("score", ["cosine", "top1", "kl", None])
def test_scores_that_cannot_see_a_single_number_change_are_refused(score):
    model = regression()
    with pytest.raises(mhprobe.UserError, match=r"got one\. Take difference\."):
        mhprobe.masking_curve(model, [images_for(model, COUNT)], units="layer", score=score)


def test_an_order_by_slopes_works_on_a_single_output():
    """The slope of its cross-entropy would be 0 for every head."""
    model = regression()
    rows = mhprobe.masking_curve(
        model, [images_for(model, COUNT)], units="head", order="fisher", score="difference", steps=2
    )
    assert rows[-1]["loss"] > 0


def test_outputs_that_are_all_equal_have_no_unit():
    for outputs in (torch.ones(4, 1), torch.tensor([[3.0]])):
        with pytest.raises(mhprobe.UserError, match="the same output"):
            Difference(outputs)
    assert Difference(torch.arange(4.0)[:, None]).spread > 0
