"""What runs a model under masks gives the right numbers whatever its gates are: closed, fractional, learned."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import mhprobe
from gated import STATES
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.parts.curve import known_orders
from models import BUILDERS, images_for, labels_for, tiny_vit

COUNT = 6


@pytest.fixture(params=STATES.values(), ids=STATES.keys())
def gate(request):
    return request.param


def loud(build, gate) -> nn.Module:
    """A model whose heads matter, under those gates."""
    model = build()
    for parameter in model.parameters():
        nn.init.normal_(
            parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel())
        )
    with torch.no_grad():
        gate(model)
    return model


def losses(model: nn.Module, mask: torch.Tensor) -> torch.Tensor:
    """(B,) with the gates themselves at 0, one mask at a time."""
    gates = mhprobe.attach(model)
    before = gates.values.clone()
    with torch.no_grad():
        gates.values[mask] = 0
        logits = model(images_for(model, COUNT))
        gates.values.copy_(before)
    return nn.functional.cross_entropy(logits, labels_for(COUNT), reduction="none")


def loader(model: nn.Module):
    return [(images_for(model, COUNT), labels_for(COUNT))]


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_what_a_head_is_worth_is_measured_under_the_present_gates(build, gate):
    model = loud(build, gate)
    layout = mhprobe.attach(model).layout
    found = mhprobe.measure(model, loader(model), [mhprobe.measures.AblationDelta])[
        "ablation_delta"
    ]
    whole = losses(model, layout.mask([]))
    expected = torch.stack(
        [(losses(model, layout.mask([head])) - whole).mean() for head in range(layout.num_heads)]
    )
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)
    off = mhprobe.attach(model).effective() == 0
    assert found[off].abs().max() < 1e-5 and found[~off].abs().min() > 1e-5


def test_interaction_is_zero_with_a_closed_head(gate):
    model = loud(tiny_vit, gate)
    layout = mhprobe.attach(model).layout
    heads = list(range(layout.num_heads))
    found = mhprobe.measure(
        model, loader(model), [functools.partial(mhprobe.measures.Interaction, heads=heads)]
    )
    off = mhprobe.attach(model).effective() == 0
    values = next(iter(found.values()))
    pairs = ~torch.eye(len(heads), dtype=torch.bool)
    assert values[pairs & (off[:, None] | off)].abs().max() < 1e-5
    expected = [losses(model, layout.mask(mask)).mean() for mask in ([4, 5], [4], [5], [])]
    torch.testing.assert_close(
        values[4, 5].float(),
        expected[0] - expected[1] - expected[2] + expected[3],
        rtol=1e-3,
        atol=1e-5,
    )


def test_one_head_alone_is_the_mask_of_its_layers_others(gate):
    model = loud(tiny_vit, gate)
    layout = mhprobe.attach(model).layout
    found = mhprobe.measure(model, loader(model), [mhprobe.measures.OneHead])["one_head"]
    whole = losses(model, layout.mask([])).mean()
    for number, head, _ in layout:
        flat, span = layout.flat(number, head), layout.span(number)
        others = [other for other in range(span.start, span.stop) if other != flat]
        rise = losses(model, layout.mask(others)).mean() - whole
        torch.testing.assert_close(found[flat].float(), -rise, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("units", ["head", "layer"])
@pytest.mark.parametrize("order", known_orders())
def test_every_order_draws_its_curve(order, units, gate):
    model = loud(tiny_vit, gate)
    layout = mhprobe.attach(model).layout
    options = (
        {"measure": mhprobe.measures.AblationDelta}
        if issubclass(known_orders()[order], ByScore)
        else {}
    )
    rows = mhprobe.masking_curve(model, loader(model), units, order, **options)
    assert rows
    for row in rows:
        if row["seed"] != "mean":
            mask = layout.mask([int(head) for head in str(row["masked"]).split()])
            assert row["loss"] == pytest.approx(float(losses(model, mask).mean()), rel=1e-4)


def test_there_are_orders():
    assert {"keep_best", "random"} <= set(known_orders())
