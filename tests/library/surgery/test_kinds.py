"""Shares of each kind, and widths in multiples, whichever order chooses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import KINDS
from mhprobe.lab.prunebench.peer import TorchPruning
from mhprobe.masking.base import Order
from mhprobe.masking.fisher import Fisher as FisherOrder
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.parts.units import Unreached
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.turns import Turns
from mhprobe.measures import Magnitude
from mhprobe.pruning.elastic import mask_at
from mhprobe.pruning.learned import LearnedGates
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import Removal, ShownChooser, prune
from mhprobe.pruning.snapvit import SnapViT
from mhprobe.surgery.costs import costs
from pruned import shown

ORDERS = {
    "knapsack": lambda **options: Knapsack(measure=Magnitude, **options),
    "fisher_swaps": FisherOrder,
    "turns": lambda **options: Turns(turns=3, search=Exact(), **options),
    "snapvit": lambda **options: SnapViT(crops=1, generations=1, levels=2, shown=12, **options),
    "learned": lambda **options: LearnedGates(steps=60, batch=12, **options),
    "tp_magnitude": lambda **options: TorchPruning("magnitude", **options),
}
OF_EACH = {"head": 0.7, "neuron": 0.8}  # 6 of 9 heads, 230 of 288 neurons


def going(order, target, model, layout, judge):
    if isinstance(order, Order):
        source = OnPath(order, target=target)
        source.check(model, 1)
        choice, _ = source.choose(
            model, judge.evaluate(model, False), judge.selection.first, layout, 1.0, 1.0
        )
        return choice.mask
    source = ShownChooser(order, target)
    source.check(model, 1)
    return source.choose(model, judge).mask


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_leaves_the_shares_of_each_kind_in_widths_that_are_multiples(name):
    if name.startswith("tp_"):
        pytest.importorskip("torch_pruning")
    model, layout, judge = shown(KINDS)
    heads, neurons = (~going(ORDERS[name](), OF_EACH, model, layout, judge)).tensor_split([9])
    assert (
        int(heads.sum()) == 6 and 228 <= int(neurons.sum()) <= 230
    )  # one ratio of Torch-Pruning can step over a few
    left = ~going(ORDERS[name](multiple=16), OF_EACH, model, layout, judge)
    widths = [int(part.sum()) for part in layout.split(left)]
    assert sum(widths[:3]) == 6 and all(width % 16 == 0 for width in widths[3:])
    # as much as fits; Torch-Pruning rounds each of three layers down
    assert (192 if name.startswith("tp_") else 224) <= sum(widths[3:]) <= 230
    params = going(ORDERS[name](), {"params": 0.8}, model, layout, judge)
    assert params.any() and not params.all()


@pytest.mark.parametrize("name", ORDERS)
def test_with_half_every_order_chooses_in_bfloat16_and_nothing_else_is_in_it(name, monkeypatch):
    """Two precisions choose nearly the same units; accuracies, and the check of the mask, are float32's."""
    if name.startswith("tp_"):
        pytest.importorskip("torch_pruning")
    seen, where = {"choosing": set(), "the rest": set()}, ["the rest"]

    def note(module, inputs, output):
        if isinstance(module, torch.nn.Linear):
            seen[where[0]].add(output.dtype)

    def chosen(half):
        model, _, judge = shown(KINDS)
        judge.half, order = half, ORDERS[name]()
        source = (
            OnPath(order, target=OF_EACH)
            if isinstance(order, Order)
            else ShownChooser(order, OF_EACH)
        )
        choose = type(source).choose

        def noted(*args):
            where[0] = "choosing"
            choice = choose(*args)
            where[0] = "the rest"
            return choice

        monkeypatch.setattr(type(source), "choose", noted)
        pruned = prune(model, judge, source, Removal(mend={"per": "weights"}))
        monkeypatch.setattr(type(source), "choose", choose)
        return pruned

    with register_module_forward_hook(note):
        whole = chosen(half=False)
        assert seen == {"choosing": {torch.float32}, "the rest": {torch.float32}}
        seen["choosing"].clear()
        half = chosen(half=True)
    assert seen == {"choosing": {torch.bfloat16}, "the rest": {torch.float32}}
    assert half.stages[0] == whole.stages[0] and half.difference < 1e-5
    assert (half.gone == whole.gone).float().mean() > 0.9


def test_with_half_times_are_those_of_float32(monkeypatch):
    model, layout, judge = shown(KINDS)
    half = []

    def timed(*args, **options):
        half.append(torch.is_autocast_enabled("cpu"))
        return lambda masks: 1 - masks.double().mean(1)

    monkeypatch.setattr("mhprobe.surgery.costs.latency_cost", timed)
    source, judge.half = OnPath(ORDERS["knapsack"](), target={"latency": 0.8}), True
    with judge.choosing():
        source.choose(model, judge.evaluate(model, False), judge.selection.first, layout, 1.0, 1.0)
        assert torch.is_autocast_enabled("cpu")
        assert (
            not torch.is_autocast_cache_enabled()
        )  # or each smaller network that is tried leaves its weights there
    everything = SimpleNamespace(
        choose=lambda model, *_: torch.ones(layout.num_heads, dtype=torch.bool)
    )
    with judge.choosing():
        ShownChooser(everything, {"latency": 0.8}).choose(model, judge)
    assert half == [False, False]


@pytest.mark.parametrize("name", ORDERS)
def test_a_width_or_a_share_that_cannot_be_is_refused_before_the_work(name):
    if name.startswith("tp_"):
        pytest.importorskip("torch_pruning")
    model, *_ = shown(KINDS)

    def check(order, target):
        (
            OnPath(order, target=target)
            if isinstance(order, Order)
            else ShownChooser(order, target)
        ).check(model, 1)

    words = r"^multiple: blocks\.0\.mlp has 96 neurons, which is no multiple of 36; choose a divisor of it"
    with pytest.raises(UserError, match=words):
        check(ORDERS[name](multiple=36), OF_EACH)
    model, *_ = shown({"head"})
    with pytest.raises(UserError, match=r"^multiple: it counts neurons, got 8 for heads alone"):
        check(ORDERS[name](multiple=8), {"flops": 0.9})
    model, *_ = shown(KINDS)
    with pytest.raises(UserError, match=r"head and neuron, .* with its value, got"):
        check(ORDERS[name](), {"head": 0.5})


def test_a_share_of_a_kind_that_is_out_of_reach_is_said_in_plain_words():
    model, *_ = shown(KINDS)
    source = OnPath(
        ORDERS["knapsack"](), target={"head": 0.1, "neuron": 0.5}, min_heads_per_layer=1
    )
    words = (
        r"^prune\.target: head=0\.1 can't be met: with every unit masked that may be \(min_heads_per_layer=1\), "
        r"0\.3334 is left\. Ask for at least that, or lift these limits\.$"
    )
    with pytest.raises(UserError, match=words):
        source.check(model, 1)
    OnPath(
        ORDERS["knapsack"](), target={"head": 0.3334, "neuron": 0.5}, min_heads_per_layer=1
    ).check(model, 1)


@pytest.mark.parametrize("name", ["knapsack", "fisher_swaps", "turns", "snapvit", "learned"])
@pytest.mark.parametrize("options", [{}, {"multiple": 16}], ids=["singly", "multiples"])
def test_a_budget_below_one_unit_is_refused_with_a_budget_that_can_be_had(name, options):
    model, layout, judge = shown(KINDS)
    everything = torch.ones(1, layout.num_heads, dtype=torch.bool)
    for unit in ("flops", "params", "neuron"):
        whole = costs(model, layout, judge.selection.first()[:1], {unit})
        asked_for = (
            {"head": 0.0, unit: 0.0}
            if unit == "neuron"
            else {unit: float(whole[unit](everything)) + 1e-5}
        )
        with pytest.raises(Unreached, match=r"can't be met: .* Ask for at least that") as error:
            going(ORDERS[name](**options), asked_for, model, layout, judge)
        named, share = re.search(
            r"(\w+)=\S+ can't be met: .* (\d\.\d+) is left", str(error.value)
        ).groups()
        left = ~going(
            ORDERS[name](**options), {**asked_for, named: float(share)}, model, layout, judge
        )
        assert left.any() and left.sum() < 0.2 * layout.num_heads
    assert going(ORDERS[name](**options), {"head": 0.0, "neuron": 0.5}, model, layout, judge)[
        :9
    ].all()


@pytest.mark.parametrize("step", ["head", "layer"])
def test_an_elastic_file_names_a_budget_that_it_can_give(step):
    model, layout, judge = shown({"head"})
    scores = [float(number) for number in range(layout.num_heads)]
    how = {
        "exclude_layers": (),
        "min_heads_per_layer": 0,
        "compete": "all",
        "normalize": "none",
        "multiple": 1,
    }
    without = costs(model, layout, judge.selection.first()[:1], {"params"})["params"](
        torch.ones(1, 9, dtype=torch.bool)
    )
    with pytest.raises(Unreached, match="can't be met") as error:
        mask_at(model, {"scores": scores, "step": step, **how}, {"params": float(without) + 1e-5})
    share = float(re.search(r"(\d\.\d+) is left", str(error.value))[1])
    left = ~mask_at(model, {"scores": scores, "step": step, **how}, {"params": share})
    assert left.sum() == {"head": 1, "layer": 3}[step]


def test_a_layer_that_keeps_so_many_keeps_a_multiple_and_the_budget_that_is_named_can_be_had():
    model, *_ = shown(KINDS)
    order = ORDERS["knapsack"](multiple=16)
    with pytest.raises(
        Unreached, match=r"\(min_heads_per_layer=1\), .* Ask for at least that"
    ) as error:
        OnPath(order, target={"flops": 0.01}, min_heads_per_layer=1).check(model, 1)
    share = float(re.search(r"(\d\.\d+) is left", str(error.value))[1])
    source = OnPath(order, target={"flops": share}, min_heads_per_layer=1)
    layout, judge = layout_of(model), shown(KINDS)[2]
    choice, _ = source.choose(
        model, judge.evaluate(model, False), judge.selection.first, layout, 1.0, 1.0
    )
    assert [int((~part).sum()) for part in layout.split(choice.mask)] == [1, 1, 1, 16, 16, 16]
