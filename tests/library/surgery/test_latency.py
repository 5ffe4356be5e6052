"""A table of latency: measured once on a machine, monotone, and what a knapsack is priced by."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

import mhprobe
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS
from mhprobe.masking.knapsack import Knapsack
from mhprobe.pruning.on_path import OnPath
from mhprobe.surgery import costs
from mhprobe.surgery.costs import latency_cost
from models import images_for, tiny_vit


def written(folder, model, seconds, whole=1.0):
    """A table of this machine with known times by width, per site."""
    layout, images = layout_of(model, KINDS), images_for(model, 2)
    machine = f"{costs.device_name(torch.device('cpu'))}, torch {torch.__version__}"
    about = {
        "machine": machine,
        "images": 2,
        "size": [16, 16],
        "layout": layout.digest,
        "multiple": 1,
    }
    widths = [[site.num_heads, site.num_heads // 2, 1] for site in layout.sites]
    times = [seconds(site) for site in layout.sites]
    file = folder / "table.json"
    file.write_text(json.dumps({**about, "whole": whole, "widths": widths, "seconds": times}))
    return file, layout, images


def test_a_table_is_measured_once_and_another_machine_is_refused(tmp_path, monkeypatch):
    model = tiny_vit()
    layout, images, file = (
        layout_of(model, KINDS),
        images_for(model, 2),
        tmp_path / "made" / "table.json",
    )
    left = latency_cost(file, model, layout, images, repeats=3)
    table = json.loads(file.read_text())
    assert [row[0] for row in table["widths"]] == [site.num_heads for site in layout.sites]
    assert all(seconds > 0 for row in table["seconds"] for seconds in row)
    assert left(torch.zeros(1, layout.num_heads, dtype=torch.bool)).item() == 1
    monkeypatch.setattr(costs, "layer_times", None)  # nobody measures again
    latency_cost(file, model, layout, images)
    others = {
        "machine": "another",
        "images": 64,
        "size": [32, 32],
        "layout": "another",
        "multiple": 8,
    }
    for key, value in others.items():
        file.write_text(json.dumps({**table, key: value}))
        with pytest.raises(mhprobe.UserError, match=rf"latency_table: .* has {key} .*, expected"):
            latency_cost(file, model, layout, images)
    file.write_text(json.dumps(table))
    monkeypatch.setattr(
        costs, "processor", lambda: "another processor"
    )  # with as many threads, and the same torch
    with pytest.raises(mhprobe.UserError, match=r"has machine .*, expected 'another processor, "):
        latency_cost(file, model, layout, images)
    file.write_text("{}")
    with pytest.raises(mhprobe.UserError, match="is no table of latency"):
        latency_cost(file, model, layout, images)


def test_a_table_of_heads_alone_is_no_table_of_heads_and_neurons_and_the_line_says_so(tmp_path):
    model, file = tiny_vit(), tmp_path / "table.json"
    both, heads, images = layout_of(model, KINDS), layout_of(model), images_for(model, 2)
    latency_cost(file, model, heads, images, repeats=1)
    units = "has units '6 heads', expected '6 heads and 192 neurons'"
    with pytest.raises(
        mhprobe.UserError,
        match=rf"^latency_table: .*table\.json {units}\. Name a file that is not there",
    ):
        latency_cost(file, model, both, images)
    older = json.loads(file.read_text())
    del older["units"]
    file.write_text(json.dumps(older))
    latency_cost(file, model, heads, images)  # the digest tells that it is of this network


def test_a_table_of_a_network_with_the_same_heads_and_other_patches_is_refused(tmp_path):
    coarse, fine, file = tiny_vit(patch_size=8), tiny_vit(patch_size=4), tmp_path / "table.json"
    layout, images = layout_of(coarse, KINDS), images_for(coarse, 2)
    assert layout.digest == layout_of(fine, KINDS).digest  # so it takes more to tell them apart
    latency_cost(file, coarse, layout, images, repeats=1)
    with pytest.raises(mhprobe.UserError, match=r"latency_table: .* has flops \d+, expected \d+"):
        latency_cost(file, fine, layout, images)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table["seconds"].pop(), "is damaged: numbers are missing"),
        (
            lambda table: (table["seconds"].pop(), table["widths"].pop()),
            "is damaged: numbers are missing",
        ),
        (lambda table: table["seconds"][0].pop(), "is damaged: numbers are missing"),
        (
            lambda table: (table["seconds"][0].clear(), table["widths"][0].clear()),
            "is damaged: numbers are missing",
        ),
        (lambda table: table.update(whole=0.0), "is damaged: numbers are missing"),
        (lambda table: table.update(whole="1"), "is no table of latency"),
        (lambda table: table.update(whole=float("nan")), "is no table of latency"),
        (lambda table: table["seconds"][0].__setitem__(0, None), "is no table of latency"),
        (lambda table: table["widths"][0].__setitem__(0, "a"), "is no table of latency"),
    ],
)
def test_a_damaged_table_is_refused_in_one_line(tmp_path, change, match):
    model = tiny_vit()
    file, layout, images = written(tmp_path, model, lambda site: [0.4, 0.2, 0.1])
    latency_cost(file, model, layout, images)  # whole
    table = json.loads(file.read_text())
    change(table)
    file.write_text(json.dumps(table))
    with pytest.raises(
        mhprobe.UserError,
        match=rf"^latency_table: .*table\.json {match}\. Name a file that is not there",
    ):
        latency_cost(file, model, layout, images)


@pytest.mark.parametrize("multiple", [1, 4, 16])
def test_mlps_are_timed_at_widths_that_a_choice_can_leave(tmp_path, monkeypatch, multiple):
    """A network of round widths is faster than one of odd widths: its times would promise too much for the other."""
    model = tiny_vit()
    mhprobe.attach(model, units=KINDS)
    layout, images, file = layout_of(model, KINDS), images_for(model, 2), tmp_path / "table.json"
    scores = torch.arange(layout.num_heads, dtype=torch.float64)
    order = Knapsack(measure=lambda layout: None, multiple=multiple)
    source = OnPath(order, target={"latency": 0.9}, latency_table=str(file))
    monkeypatch.setattr(
        costs,
        "layer_times",
        lambda _, layout, masks, *rest: (1.0, [[0.1] * len(masks)] * len(layout.sites)),
    )
    with pytest.raises(mhprobe.UserError, match="target"):  # no width saves any time here
        source.choose(
            model, SimpleNamespace(measure=lambda *_: scores), lambda: images, layout, 1.0, 1.0
        )
    for site, widths in zip(layout.sites, json.loads(file.read_text())["widths"], strict=True):
        assert widths[0] == site.num_heads and min(widths) > 0
        if site.kind == "neuron":
            assert all(
                width % multiple == 0 if multiple > 1 else width % 2 == 1 for width in widths[1:]
            )


def test_times_never_fall_with_the_width_and_are_lines_between_what_was_measured(tmp_path):
    model = tiny_vit()
    # 96 neurons take .4, 48 of them .5 (noise), one .1: the nearest times that do not fall are .45,
    # .45 and .1
    file, layout, images = written(tmp_path, model, lambda site: [0.4, 0.5, 0.1], whole=2.0)
    left = latency_cost(file, model, layout, images)
    neurons = layout.span(len(layout.sites) - 1)
    for gone, seconds in (
        (0, 0.45),
        (10, 0.45),
        (48, 0.45),
        (72, 0.1 + 0.35 * 23 / 47),
        (95, 0.1),
        (96, 0.1),
    ):
        mask = torch.zeros(1, layout.num_heads, dtype=torch.bool)
        mask[0, neurons.start : neurons.start + gone] = True
        assert left(mask).item() == pytest.approx(1 - (0.45 - seconds) / 2.0)


def test_a_knapsack_is_priced_by_the_table_and_not_by_flops(tmp_path):
    """Equal scores: what saves the most time goes.

    Against the smallest number of units of all mixes that will do.
    """
    model = tiny_vit(mlp_ratio=0.25)  # 6 neurons a block
    mhprobe.attach(model, units=KINDS)
    times = {"head": [0.2, 0.1, 0.02], "neuron": [0.06, 0.03, 0.01]}
    file, layout, images = written(tmp_path, model, lambda site: times[site.kind])
    scores = torch.ones(layout.num_heads, dtype=torch.float64)
    known = SimpleNamespace(
        measure=lambda make, mask, column: scores
    )  # an Evaluate that scores no masks
    order = Knapsack(measure=lambda layout: None)
    source = OnPath(order, target={"latency": 0.75}, latency_table=str(file))
    mask = source.choose(model, known, lambda: images, layout, 1.0, 1.0)[0].mask
    left = latency_cost(file, model, layout, images)
    assert left(mask[None]).item() <= 0.75 + 1e-9
    heads = layout.of("head").num_heads
    assert (
        mask[:heads].sum() > 0 and mask[heads:].sum() == 0
    )  # a head saves .07 s or so, a neuron .01
    sizes = [range(site.num_heads + 1) for site in layout.sites]
    enough = []
    for gone in itertools.product(*sizes):
        trial = torch.cat(
            [torch.arange(site.num_heads) < n for site, n in zip(layout.sites, gone, strict=True)]
        )
        if left(trial[None]).item() <= 0.75 + 1e-9:
            enough.append(sum(gone))
    assert int(mask.sum()) == min(enough)
    with pytest.raises(mhprobe.UserError, match=r"^latency_table: prices target"):
        OnPath(order, target={"flops": 0.7}, latency_table=str(file)).check(model, 1)


def test_of_an_even_number_of_rounds_the_middle_two_are_averaged(monkeypatch):
    model = tiny_vit()
    layout = layout_of(model)
    rounds = iter([9.0, 1.0, 2.0, 4.0, 8.0])  # the first is the warm-up
    monkeypatch.setattr(costs, "_clocked", lambda *_: [next(rounds)] + [0.5] * len(layout.sites))
    nothing = torch.zeros(layout.num_heads, dtype=torch.bool)
    whole, per_site = costs.layer_times(model, layout, [nothing], images_for(model, 1), repeats=4)
    assert whole == 3
    assert per_site[0] == pytest.approx([3 * (0.5 / 2 + 0.5 / 4) / 2])
