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
def test_a_head_costs_the_slope_between_all_heads_and_half_of_them(build, monkeypatch):
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
        clock.now += 3.0  # gates cost time, and are no part of the model that heads are removed from
        return multiply(self, *args, **kwargs)

    monkeypatch.setattr(gates, "forward", gates_forward)
    share = costs.head_latency(model, layout, images_for(model, 2), repeats=3)
    assert clock.now > 0
    torch.testing.assert_close(share, torch.full((layout.num_heads,), 0.05, dtype=torch.float64), rtol=1e-6, atol=0)


def test_the_real_clock_gives_shares():
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    share = costs.head_latency(model, layout, images_for(model, 4), repeats=3)
    assert share.shape == (6,) and (share >= 0).all() and share.sum() < 1
    assert not model.training and not any(m._forward_pre_hooks for n, m in model.named_modules() if n.endswith(".attn"))


def test_a_timing_is_the_median_of_its_repeats_without_the_warm_up(monkeypatch):
    clock, taken = Clock(), {"one": [100, 100, 100, 1, 9, 2, 2.5, 3], "other": [100, 100, 4, 4, 90, 4, 5]}
    monkeypatch.setattr(costs, "time", clock)

    def run(name):
        clock.now += taken[name].pop(0)

    runs = [lambda name=name: run(name) for name in taken]
    assert costs._medians(runs, 5) == [2.5, 4]
    assert taken == {"one": [], "other": []}  # so many turns, behind a warm-up
