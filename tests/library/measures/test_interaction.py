"""Pairs of heads: second differences by hand, copies of a head, and which pairs are looked at."""

from __future__ import annotations

import itertools

import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.interaction import Interaction
from models import images_for, labels_for, tiny_swin, tiny_vit

LAYOUT = HeadLayout((HeadSite("a", 0, 0, 2, 3), HeadSite("b", 1, 1, 4, 3)))


def batch(measure, losses: dict[tuple[int, ...], list[float]]) -> HeadBatch:
    """Logits whose cross-entropy is exactly this, per image, under each mask; () is the whole model."""

    def logits(loss):
        loss = torch.tensor(loss, dtype=torch.float64)
        return torch.stack(
            [torch.zeros_like(loss), torch.log(torch.expm1(loss))], -1
        )  # log(1 + e^x) = loss

    images = len(losses[()])
    return HeadBatch(
        z=(),
        logits=logits(losses[()]),
        labels=torch.zeros(images, dtype=torch.long),
        valid=torch.ones(images, dtype=torch.bool),
        ablated={
            measure.ablation: torch.stack([logits(losses[mask]) for mask in measure.ablation.masks])
        },
    )


def test_second_differences_by_hand():
    measure = Interaction(LAYOUT, pairs=[[3, 0]])
    assert measure.ablation.masks == ((0,), (3,), (0, 3)) and measure.select_needs is None
    measure.update(
        batch(measure, {(): [1, 1, 1], (0,): [1.5, 1, 2], (3,): [1, 2, 1], (0, 3): [2, 2, 3]})
    )
    got = measure.columns()
    extra = torch.tensor([0.5, 0, 1], dtype=torch.float64)  # both - a - b + none, image by image
    for name, expected in (
        ("value", extra.mean()),
        ("standard_error", extra.std() / 3**0.5),
        ("both", torch.tensor(4 / 3, dtype=torch.float64)),
    ):
        torch.testing.assert_close(got[name][0, 3], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got[name][3, 0], expected, rtol=1e-9, atol=1e-9)
    assert got["value"].isfinite().sum() == 2  # no other pair was looked at
    torch.testing.assert_close(
        got["alone"][[0, 3]], torch.tensor([0.5, 1 / 3]).double(), rtol=1e-6, atol=1e-9
    )
    assert (got["low"][0, 3] < got["value"][0, 3] < got["high"][0, 3]).all()


def redundant() -> torch.nn.Module:
    """The first two heads of block 1 are copies that write the same."""
    model = tiny_vit().double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    attention, width = model.blocks[1].attn, 8
    with torch.no_grad():
        for part in range(3):
            start = part * 24
            attention.qkv.weight[start + width : start + 2 * width] = attention.qkv.weight[
                start : start + width
            ]
            attention.qkv.bias[start + width : start + 2 * width] = attention.qkv.bias[
                start : start + width
            ]
        attention.proj.weight[:, width : 2 * width] = attention.proj.weight[:, :width]
    return model


def test_heads_of_one_layer_that_cancel_interact_to_the_loss_of_nothing():
    """Of two heads that write z and -z, masking both changes nothing: the interaction is minus the two alone."""
    model = redundant()
    with torch.no_grad():
        model.blocks[1].attn.proj.weight[:, 8:16] *= -1
    layout = mhprobe.attach(model).layout
    measure = Interaction(layout, heads=[3, 4])
    images, labels = images_for(model, 12, dtype=torch.float64), labels_for(12)
    measure.update(mhprobe.record(model, images, labels, measure.needs))
    got = measure.columns()
    assert abs(got["both"][3, 4]) < 1e-10
    torch.testing.assert_close(got["value"][3, 4], -got["alone"][3] - got["alone"][4])
    assert got["alone"][[3, 4]].abs().min() > 1e-3


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize("which", ["most", "least"])
def test_without_names_the_pairs_are_those_of_the_most_or_least_important_heads(build, which):
    model = build()
    layout = mhprobe.attach(model).layout
    images, labels = images_for(model, 6), labels_for(6)
    measure = Interaction(layout, top_k=3, which=which)
    measure.select(mhprobe.record(model, images, labels, measure.select_needs))
    measure.end_select()
    importance = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    best = sorted(importance.argsort(descending=which == "most")[:3].tolist())
    assert measure.heads == tuple(best) and measure.pairs == tuple(itertools.combinations(best, 2))
    measure.update(mhprobe.record(model, images, labels, measure.needs))
    known = measure.compute().isfinite().nonzero().tolist()
    assert {tuple(sorted(pair)) for pair in known} == set(measure.pairs)


def test_a_model_with_fewer_heads_than_asked_for_is_looked_at_whole():
    assert len(Interaction(LAYOUT, top_k=20).pairs) == 15


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"which": "best"}, "most, least"),
        ({"top_k": 1}, "top_k"),
        ({"heads": [0, 1], "pairs": [[0, 1]]}, "not both"),
        ({"heads": [0]}, "two heads"),
        ({"heads": [0, 6]}, "0 to 5"),
        ({"heads": [0, 3, 0]}, "interaction: heads: expected each head once, got 0 2 times"),
        ({"heads": [0, 0, 0, 0, 1, 1]}, "may be a mask"),
        ({"top_k": True}, "top_k"),
        ({"pairs": [[2, 2]]}, "two different"),
        ({"pairs": [[2, 3], [4, 5], [3, 2]]}, r"expected each pair once, got \[2, 3\] 2 times"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, words):
    with pytest.raises(UserError, match=words) as error:
        Interaction(LAYOUT, **options)
    assert "\n" not in str(error.value)


def test_a_network_of_one_head_is_told_which_head_it_has():
    with pytest.raises(UserError, match=r"two heads to pair, got heads=\[0\]"):
        Interaction(mhprobe.attach(tiny_vit(num_heads=1, depth=1)).layout)
