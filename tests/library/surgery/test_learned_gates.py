"""Gates that are learned at a price of FLOPs: the budget is hit, and few sets of the same size lose less."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.framework.run.pruning import source_of
from mhprobe.heads import KINDS
from mhprobe.pruning.learned import LearnedGates
from mhprobe.pruning.rounds import ShownChooser, prune
from mhprobe.surgery.costs import count_flops
from pruned import COUNT, shown, spared


def test_the_expected_flops_and_those_that_are_left_are_within_a_percent_of_the_budget():
    model, layout, judge = shown(KINDS)
    before = copy.deepcopy(model.state_dict())
    cost_A = spared(model, layout, judge.selection.first())
    for share in (0.8, 0.6):
        open_A = LearnedGates(batch=16).fit(model, judge, [share], cost_A[None])
        assert float(1 - (cost_A * (1 - open_A)).sum()) == pytest.approx(share, abs=0.01)
        assert ((open_A < 0.1) | (open_A > 0.9)).double().mean() > 0.7  # they have decided
        found = prune(model, judge, ShownChooser(LearnedGates(batch=16), {"flops": share}))
        left = count_flops(found.model, judge.selection.first()[:1]) / count_flops(
            model, judge.selection.first()[:1]
        )
        assert share - 0.01 < left <= share
    assert found.chosen_by == ("train:train",)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    gates = mhprobe.attach(model, units=KINDS)
    assert (gates.effective() == 1).all() and not gates.values.requires_grad


def test_few_sets_of_as_many_heads_lose_less():
    """Against all 84 sets of three heads."""
    model, layout, judge = shown({"head"})
    cost = float(spared(model, layout, judge.selection.first())[0])
    mask = LearnedGates(batch=24).choose(model, judge, {"flops": 1 - 3 * cost})
    assert int(mask.sum()) == 3
    sets = list(itertools.combinations(range(layout.num_heads), 3))
    losses = judge.evaluate(model, False)(
        torch.stack([layout.mask(list(heads)) for heads in sets])
    ).loss
    ours = losses[sets.index(tuple(mask.nonzero().flatten().tolist()))]
    assert (losses < ours).double().mean() < 0.1


def test_without_labels_it_learns_from_the_classes_of_the_whole_network():
    model, layout, judge = shown({"head"})
    cost_TA = torch.full((1, layout.num_heads), 0.05, dtype=torch.float64)
    expected = LearnedGates(steps=4, batch=24).fit(model, judge, [0.9], cost_TA)
    judge.selection.data.unlabelled, judge.selection.data.labels = (
        True,
        torch.zeros(COUNT, dtype=torch.long),
    )
    judge.show(model)
    found = LearnedGates(steps=4, batch=24).fit(model, judge, [0.9], cost_TA)
    torch.testing.assert_close(found, expected)
    wrong = [labels for _, labels in judge.sloped()]
    assert torch.cat(wrong).equal(torch.cat([model(part).argmax(1) for part, _ in judge.sloped()]))
    assert torch.cat(wrong).any()  # the control: not the labels that are there


def test_what_it_cannot_do_is_refused():
    with pytest.raises(UserError, match="steps: learned gates need 1 or more, got 0"):
        LearnedGates(steps=0)
    usual = {
        "guarantee": None,
        "target": {"flops": 0.5},
        "elastic": False,
        "units": "head",
        "remove": None,
    }
    usual |= {
        "exclude_layers": [],
        "min_heads_per_layer": 0,
        "rescale": False,
        "latency_table": None,
    }
    assert source_of(SimpleNamespace(**usual), LearnedGates()).target == {"flops": 0.5}
    others = (
        {"min_heads_per_layer": 1},
        {"units": "layer"},
        {"latency_table": "table.json"},
    )  # none is ignored
    for wrong in ({"target": {"latency": 0.5}}, {"target": None, "remove": 3}, *others):
        with pytest.raises(UserError, match=r"^target: a method that is shown the network itself"):
            source_of(SimpleNamespace(**{**usual, **wrong}), LearnedGates())
