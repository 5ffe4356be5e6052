"""How far a curve may go: floors, targets, and what is said when they can't be met."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.fisher import Fisher
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.curve import curve_on_splits as curves_of
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.turns import Turns
from mhprobe.report.tables import curve_rows


def a_measure(layout):
    raise AssertionError


def masking_curve(*args, **kwargs) -> list[dict]:
    return curve_rows(curves_of(*args, **kwargs))


class Table(Evaluate):
    images = 50

    def __call__(self, masks, images=None):
        every = torch.arange(50) if images is None else images
        correct = torch.tensor([random.Random(str(mask.tolist())).randrange(51) for mask in masks])[
            :, None
        ]
        return Scores(every < correct, (50 - correct).double().expand(-1, len(every)) / 50)

    def measure(self, make, mask, column="value"):
        return torch.rand(len(mask), generator=torch.Generator().manual_seed(1))


def curve(layout, order, **more):
    select = Table()
    rows = masking_curve(
        layout, CurveSpec("c", "head", order, **more), select, select, splits=("test", "test")
    )
    return [row for row in rows if row["seed"] in ("", 0)]


def left(layout: HeadLayout, row) -> list[int]:
    """Heads left per layer."""
    masked = set(map(int, row["masked"].split()))
    return [
        sum(layout.flat(i, h) not in masked for h in range(site.num_heads))
        for i, site in enumerate(layout.sites)
    ]


# that every order keeps to its limits is one of the contracts
def test_a_curve_leaves_each_layer_its_last_heads():
    layout = layout_of(3, 4, 1)
    rows = curve(layout, KeepBest(), min_heads_per_layer=2)
    assert all(count >= 2 for row in rows for count in left(layout, row)[:2])
    assert left(layout, rows[-1]) == [
        2,
        2,
        1,
    ]  # and goes as far as it may; the layer of one head is not touched
    assert left(layout, curve(layout, KeepBest())[-1]) == [0, 0, 0]


@pytest.mark.parametrize("heads", [0, 3, 5, 8])
def test_a_curve_stops_at_the_first_step_that_reaches_the_target(heads):
    layout = layout_of(3, 4, 1)
    counts = [sum(left(layout, row)) for row in curve(layout, KeepBest(), target={"heads": heads})]
    assert counts[-1] <= heads and all(count > heads for count in counts[:-1])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 16))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_target_in_reach_is_met_and_one_out_of_reach_names_the_nearest(widths, floor, heads):
    layout = layout_of(*widths)
    nearest = sum(min(floor, width) for width in widths)
    heads = min(heads, layout.num_heads)
    if nearest == layout.num_heads > heads:
        with pytest.raises(UserError, match="leaves no unit to mask"):
            curve(layout, KeepBest(), target={"heads": heads}, min_heads_per_layer=floor)
    elif nearest > heads:
        with pytest.raises(UserError, match=rf"can't be met: .* {nearest} is left") as error:
            curve(layout, KeepBest(), target={"heads": heads}, min_heads_per_layer=floor)
        assert "\n" not in str(error.value)
    else:
        rows = curve(layout, KeepBest(), target={"heads": heads}, min_heads_per_layer=floor)
        assert sum(left(layout, rows[-1])) == heads


def test_a_target_in_flops_or_time_uses_what_it_is_given():
    layout = layout_of(2, 2)
    price = torch.tensor([0.1, 0.1, 0.3, 0.2], dtype=torch.float64)
    costs = {"flops": lambda masks: 1 - masks.double() @ price}
    spec = CurveSpec("c", "head", ByScore(measure=a_measure), target={"flops": 0.7})
    rows = masking_curve(layout, spec, Table(), Table(), costs=costs)
    shares = [
        float(costs["flops"](layout.mask(list(map(int, row["masked"].split())))[None]))
        for row in rows
    ]
    assert (
        min(shares) <= 0.7 and sum(share <= 0.7 for share in shares) == 2
    )  # the last row of each split
    with pytest.raises(UserError, match=r"flops=0.2 can't be met: .* 0.3 is left"):
        masking_curve(
            layout,
            CurveSpec("c", "head", KeepBest(), target={"flops": 0.2}),
            Table(),
            Table(),
            costs=costs,
        )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"target": {"speed": 0.5}}, "expected one of heads.* with its value, got"),
        ({"target": {}}, "expected one of heads"),
        ({"target": {"heads": 9}}, "from 0 to 8, got 9"),
        ({"target": {"heads": -1}}, "from 0 to 8, got -1"),
        ({"min_heads_per_layer": 4}, "min_heads_per_layer=4 leaves no unit to mask"),
        ({"min_heads_per_layer": -1}, "whole number from 0, got -1"),
    ],
)
def test_impossible_limits_are_refused_in_one_line(more, says):
    with pytest.raises(UserError, match=says) as error:
        curve(layout_of(4, 4), KeepBest(), **more)
    assert "\n" not in str(error.value)


def test_what_can_be_known_is_known_before_the_model_runs():
    CurveSpec("c", "head", KeepBest(), target={"flops": 0.1}).check(layout_of(4, 4))
    with pytest.raises(UserError, match="exclude_layers"):
        CurveSpec("c", "head", KeepBest(), [-1], target={"heads": 2}).check(layout_of(4, 4))


@pytest.mark.parametrize(
    ("layers", "got"), [([0, 0], "each once"), ([0, 1, 0, 1], "each once"), ([True], "got True")]
)
def test_layers_are_numbers_and_each_stands_once(layers, got):
    with pytest.raises(UserError, match=f"exclude_layers: .*{got}"):
        make_units("head", layout_of(4, 4), layers)


def test_all_heads_may_go():
    rows = curve(layout_of(2, 2), KeepBest())
    assert rows[-1]["heads_masked"] == 4


@pytest.mark.parametrize("order", [Fisher(multiple=8), Turns(multiple=8)])
def test_multiples_of_neurons_are_refused_where_only_heads_can_go(order):
    """It was left out without a word, while pruning and the knapsack's curve refused it."""
    with pytest.raises(
        UserError, match=r"^multiple: it counts neurons, got 8 for heads alone; take 1, or neurons"
    ):
        CurveSpec("c", "head", order).check(layout_of(3, 2))
    CurveSpec("c", "head", type(order)()).check(layout_of(3, 2))
