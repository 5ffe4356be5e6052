"""Fisher's search: the information against autograd, the search against its definition, exchanges against all sets."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mhprobe
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate, Limits, PathTarget
from mhprobe.masking.fisher import Fisher, rearrange
from mhprobe.masking.parts.units import constrain, make_units
from mhprobe.scoring.parts.evaluate import Evaluator
from models import BUILDERS, images_for, labels_for
from oracles import surgery as oracle

MODELS = {name: build() for name, build in BUILDERS.items()}
VIT = layout_of(MODELS["vit"])  # 2 layers of 3 heads


class Information(Evaluate):
    """A matrix, in place of a model."""

    def __init__(self, fisher, layout):
        self.matrix, self.layout = fisher.double(), layout

    def slopes(self, mask):
        return torch.zeros(len(mask)), self.matrix.diagonal()

    def fisher(self, mask):
        return blocks_of(self.layout, self.matrix)


def blocks_of(layout, matrix):
    spans = [layout.span(number) for number in range(len(layout.sites))]
    return [matrix[span, span] for span in spans]


def off(fisher, remove=None, layout=VIT, limits=None, units="head", **options):
    chosen = make_units(units, layout)
    chosen = chosen if limits is None else constrain(chosen, limits, "here")
    (path,) = Fisher(**options).paths(chosen, layout, Information(fisher, layout), remove)
    return torch.nonzero(path.masks()[-1]).flatten().tolist()


def some_fisher(layout, seed):
    slopes = torch.randn(
        40, layout.num_heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    slopes[:, 1] = slopes[:, 0] + 0.1 * slopes[:, 1]
    return slopes.mT @ slopes / 40


@pytest.mark.parametrize("gate", [1.0, 0.5])
@pytest.mark.parametrize("name", ["vit_registers", "swin"])
def test_fisher_is_the_mean_outer_product_of_each_images_slopes(name, gate):
    model = copy.deepcopy(MODELS[name]).double()
    images, labels = images_for(model, 5, dtype=torch.float64), labels_for(5)
    layout = layout_of(model)
    share = torch.ones(layout.num_heads, dtype=torch.float64)
    share[2] = gate
    with torch.no_grad():
        halved = mhprobe.prune_heads(model, [])
        gates = mhprobe.attach(halved)
        gates.values.copy_(share)
        folded = mhprobe.prune_heads(halved, [])
    expected = oracle.fisher(
        folded, images, labels, layout.sites
    )  # along the share that is let through
    index, valid = torch.tensor([3, 4, 0]), torch.tensor([True, True, False])
    batches = [
        Batch(images[:3], labels[:3], torch.arange(3), torch.ones(3, dtype=torch.bool)),
        Batch(images[index], labels[index], index, valid),
    ]
    evaluate = Evaluator(halved, lambda: batches, 5)
    nothing = torch.zeros(layout.num_heads, dtype=torch.bool)
    found = evaluate.fisher(nothing)
    for block, of_site in zip(found, blocks_of(layout, expected), strict=True):
        torch.testing.assert_close(block, of_site, rtol=1e-9, atol=1e-18)
    diagonal = torch.cat([block.diagonal() for block in found])
    torch.testing.assert_close(diagonal, evaluate.slopes(nothing)[1], rtol=1e-12, atol=0)
    assert expected.diagonal().std() > 0.1 * expected.diagonal().mean()


def test_search_takes_the_heads_of_least_fisher_information():
    fisher = torch.diag(torch.tensor([3.0, 1.0, 2.0, 1.0, 5.0, 9.0]))
    assert off(fisher, 1) == [1]  # ties: the lower index
    assert off(fisher, 3) == [1, 2, 3]
    assert off(fisher, 0) == []
    assert off(fisher, 1, units="layer") == [
        0,
        1,
        2,
    ]


def test_under_a_flop_target_a_head_that_is_dear_and_of_no_use_goes_first():
    fisher = torch.diag(torch.tensor([1.0, 4.0, 9.0, 1.5, 9.0, 9.0]))
    price = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.2, 0.2]).double()
    for value, expected in [(0.95, [3]), (0.71, [0, 3])]:
        limits = Limits(
            VIT, targets=(PathTarget("flops", value, lambda masks: 1 - masks.double() @ price),)
        )
        assert off(fisher, limits=limits, rearranged=False) == expected
    heads = Limits(VIT, targets=(PathTarget("heads", 5, lambda masks: (~masks).sum(-1).double()),))
    assert off(fisher, limits=heads) == [0]  # every head counts the same


def test_information_that_is_no_number_names_its_head():
    fisher = torch.eye(6)
    fisher[4, 4] = torch.nan
    with pytest.raises(UserError, match=r"fisher: the score of blocks\.1\.attn head 1 is nan"):
        off(fisher, 2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), remove=st.integers(1, 9))
def test_rearranging_keeps_the_number_per_layer_and_never_costs_more(seed, remove):
    layout = layout_of(MODELS["swin"])
    fisher = some_fisher(layout, seed)
    before, after = (
        layout.mask(off(fisher, remove, layout, rearranged=rearranged))
        for rearranged in (False, True)
    )
    for number in range(len(layout.sites)):
        span = layout.span(number)
        block, old, new = fisher[span, span], before[span].double(), after[span].double()
        assert old.sum() == new.sum()
        cost = [(m @ block @ m).item() for m in (old, new)]
        assert cost[1] <= cost[0] + 1e-12
        best, _ = oracle.best_of_layer(block, int(old.sum()))
        assert cost[1] <= max(
            best * 1.0001, best + 1e-9
        )  # with 2 or 3 heads, exchanges reach the best of all


def test_of_two_twins_rearranging_keeps_one():
    """Twins look useless one by one: the diagonal takes both."""
    slopes = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slopes[:, 1] = slopes[:, 0]
    slopes[:, 2] *= 1.2
    slopes[:, 3:] *= 9
    fisher = slopes.mT @ slopes / 50
    assert off(fisher, 2, rearranged=False) == [0, 1]
    assert off(fisher, 2) in ([0, 2], [1, 2])


def test_rearranging_leaves_heads_alone_that_may_not_be_masked():
    fisher = blocks_of(VIT, some_fisher(VIT, 3))
    mask = VIT.mask([0, 1])
    assert not rearrange(VIT, fisher, mask, torch.ones_like(mask)).equal(mask)  # the control
    assert rearrange(VIT, fisher, mask, among=mask).equal(mask)
