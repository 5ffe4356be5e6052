"""What a removed head saves in time: a line through two measurements, with a clock that can be trusted."""

from __future__ import annotations

import pytest
import torch

import mhprobe
from mhprobe.surgery import costs
from models import images_for, tiny_swin, tiny_vit


def test_operations_are_counted_wherever_they_are_asked_for():
    model = tiny_vit()
    counts = [costs.count_flops(model, images_for(model, 1))]
    for around in (torch.no_grad, torch.inference_mode):
        with around():
            counts.append(costs.count_flops(model, images_for(model, 1)))
    assert len(set(counts)) == 1 and counts[0] > 0


class Clock:
    """Time passes by the number of heads that an attention module runs, and 10 for the whole model."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_head_saves_the_slope_between_the_measured_widths(build, monkeypatch):
    model = build()
    layout = mhprobe.attach(model).layout
    clock = Clock()
    whole = type(model).forward
    attention = type(model.get_submodule(layout.sites[0].name))
    part = attention.forward

    def model_forward(self, x):
        before = clock.now
        out = whole(self, x)
        clock.now = before + 10.0
        return out

    def attention_forward(self, *args, **kwargs):
        clock.now += 0.25 + 0.5 * self.num_heads  # some of it is there without heads too
        return part(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", model_forward)
    monkeypatch.setattr(attention, "forward", attention_forward)
    monkeypatch.setattr(costs, "time", clock)
    gates = type(mhprobe.attach(model))
    multiply = gates.forward

    def gates_forward(self, *args, **kwargs):
        clock.now += (
            3.0  # gates cost time, and are no part of the model that heads are removed from
        )
        return multiply(self, *args, **kwargs)

    monkeypatch.setattr(gates, "forward", gates_forward)
    left = costs.latency_cost(None, model, layout, images_for(model, 2), repeats=3)
    share = 1 - left(torch.eye(layout.num_heads, dtype=torch.bool))
    assert clock.now > 0
    torch.testing.assert_close(
        share, torch.full((layout.num_heads,), 0.05, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_the_real_clock_gives_shares():
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    left = costs.latency_cost(None, model, layout, images_for(model, 4), repeats=3)
    share = 1 - left(torch.eye(6, dtype=torch.bool))
    assert share.shape == (6,) and (share >= 0).all() and share.sum() < 1
    assert not model.training and not any(
        m._forward_pre_hooks for n, m in model.named_modules() if n.endswith(".attn")
    )


def test_a_machine_that_slows_down_slows_the_whole_pass_as_much_as_its_layers(monkeypatch):
    """Of every seven rounds three take ten times as long."""
    model, clock, passes = tiny_vit(), Clock(), []
    layout = mhprobe.attach(model).layout
    attention = type(model.get_submodule(layout.sites[0].name))
    whole, part = type(model).forward, attention.forward

    def model_forward(self, x):
        passes.append(1)
        before, out = clock.now, whole(self, x)
        clock.now = before + 10.0 * slow()
        return out

    def attention_forward(self, *args, **kwargs):
        clock.now += 0.5 * self.num_heads * slow()
        return part(self, *args, **kwargs)

    def slow():
        return 10.0 if (len(passes) - 1) // 2 % 7 < 3 else 1.0  # the two passes of a round alike

    monkeypatch.setattr(type(model), "forward", model_forward)
    monkeypatch.setattr(attention, "forward", attention_forward)
    monkeypatch.setattr(costs, "time", clock)
    half = torch.tensor([False, True, True] * len(layout.sites))
    seconds, times = costs.layer_times(
        model, layout, [half & False, half], images_for(model, 2), repeats=15
    )
    assert seconds in (10.0, 100.0)
    for row in times:
        torch.testing.assert_close(
            torch.tensor(row) / seconds, torch.tensor([0.15, 0.05]), rtol=1e-6, atol=0
        )


def test_what_a_width_costs_is_a_line_between_one_unit_and_all_but_one():
    """A module without units loses what they share, and the whole one may be of another class."""
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    names = [site.name for site in layout.sites]
    heads = layout.sites[0].num_heads
    of_width = {0: 1.0, 1: 40.0, heads - 1: 50.0, heads: 90.0}

    def count(smaller: torch.nn.Module) -> list[float]:
        return [of_width[getattr(smaller.get_submodule(name), "num_heads", 0)] for name in names]

    for got in costs._by_width(model, layout, count):
        assert {width: got[width] for width in of_width} == of_width
        between = [got[width + 1] - got[width] for width in range(1, heads - 1)]
        assert between == pytest.approx([10.0 / (heads - 2)] * (heads - 2))
        assert got[1] - got[0] > 3 * between[0] < got[heads] - got[heads - 1]  # no single line
