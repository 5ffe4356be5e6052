"""Masking against a model that is a table: any function from sets of masked heads to scores."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from curves import curve
from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.hurt_most import HurtMost
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec, known_orders, order_named
from mhprobe.masking.parts.curve import curve_on_splits as curves_of
from mhprobe.masking.parts.trace import summary, totals
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.masking.search.exact import Exact
from mhprobe.report.tables import CURVE_COLUMNS, curve_rows
from mhprobe.stats.significance import wilson
from oracles import masking as oracle

IMAGES = 1000
PLAIN = Exact(parts=1)  # every candidate on all images at once, so that evaluations can be counted


VIT = layout_of(*[12] * 12)
SWIN = layout_of(3, 3, 6, 6, 12, 12, stages=(0, 0, 1, 1, 2, 2))


class Table(Evaluate):
    """A score for every set of masked heads, drawn once, and a count of what was asked.

    The images that are right are the first ones; every image loses the share that is wrong.
    """

    images = IMAGES

    def __init__(self, seed: int, values: int = IMAGES) -> None:
        self.seed, self.values = seed, values
        self.evaluations = self.walks = 0

    def score(self, masked: frozenset[int]) -> int:
        return random.Random(f"{self.seed} {sorted(masked)}").randrange(self.values)

    def __call__(self, masks: torch.Tensor, images: torch.Tensor | None = None) -> Scores:
        self.evaluations += len(masks)
        self.walks += 1
        every = torch.arange(IMAGES) if images is None else images
        correct = torch.tensor([self.score(heads) for heads in sets(masks)])[:, None]
        wrong = (IMAGES - correct).double() / IMAGES
        return Scores(every < correct, wrong.expand(-1, len(every)))


def sets(masks: torch.Tensor) -> list[frozenset[int]]:
    return [frozenset(torch.nonzero(mask).flatten().tolist()) for mask in masks]


def alone(rows: list[dict]) -> list[dict]:
    """Rows as a single point gives them, sorted: how many steps there are, and so Holm's correction, is not known.

    Rounded: the bootstrap of one point and of many are products of matrices of different shapes.
    """
    plain = [
        {k: round(v, 12) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
    return sorted(({**row, "p_holm": ""} for row in plain), key=str)


def masking_curve(*args, **kwargs) -> list[dict]:
    return curve_rows(curves_of(*args, **kwargs))


def order_of(order, units, layout, table, **kwargs) -> list[int]:
    (path,) = order.paths(units, layout, table, **kwargs)
    return [units.names.index(name) for name in path.names]


# --- units


def test_units_hold_the_heads_their_names_say():
    layout = layout_of(2, 2, 2)
    assert sets(make_units("index", layout).masks) == [{0, 2, 4}, {1, 3, 5}]
    assert sets(make_units("layer", layout).masks) == [{0, 1}, {2, 3}, {4, 5}]
    assert sets(make_units("head", layout).masks) == [{head} for head in range(6)]
    assert sets(make_units("stage", layout).masks) == [{0, 1, 2, 3, 4, 5}]
    assert make_units("layer", layout).names == ("blocks.0.attn", "blocks.1.attn", "blocks.2.attn")
    assert make_units("index", layout).names == ("index 0", "index 1")


@pytest.mark.parametrize("layout", [VIT, SWIN, layout_of(3)])
@pytest.mark.parametrize("name", ["index", "layer", "head", "stage"])
def test_units_cover_every_head_once(layout, name):
    units = make_units(name, layout)
    assert (units.masks.sum(0) == 1).all()
    assert len(set(units.names)) == len(units)


def test_index_units_stay_within_their_stage_where_stages_differ():
    units = make_units("index", SWIN)
    assert units.per_stage and len(units) == 3 + 6 + 12
    assert units.names[0] == "stage 0 index 0" and units.names[3] == "stage 1 index 0"
    assert sets(units.masks)[3] == {SWIN.flat(2, 0), SWIN.flat(3, 0)}
    assert not make_units("index", VIT).per_stage
    assert not make_units("index", layout_of(2, 2, stages=(0, 1))).per_stage


def test_layers_pruned_to_different_widths_share_the_indices_they_have():
    assert sets(make_units("index", layout_of(1, 3)).masks) == [{0, 1}, {2}, {3}]


@pytest.mark.parametrize("excluded", [[-1], [2], [2, -1]])
@pytest.mark.parametrize("name", ["index", "layer", "head", "stage"])
def test_excluded_layers_are_never_masked(name, excluded):
    layout = layout_of(2, 2, 2)
    assert make_units(name, layout, excluded).masks.any(0).tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("name", "excluded", "says"),
    [
        ("indices", [], "expected one of index, layer, head, stage, got 'indices'"),
        ("layer", [3], "expected numbers from -3 to 2, got 3"),
        ("layer", [-4], "got -4"),
        ("layer", [0, 1, -1], "nothing is left to mask"),
    ],
)
def test_wrong_units_are_refused_in_one_line(name, excluded, says):
    with pytest.raises(UserError, match=says) as error:
        make_units(name, layout_of(2, 2, 2), excluded)
    assert "\n" not in str(error.value)


# --- greedy orders


@pytest.mark.parametrize("order", [KeepBest(search=PLAIN), HurtMost(search=PLAIN)])
@pytest.mark.parametrize("name", ["index", "layer"])
def test_twelve_units_take_78_evaluations_in_12_walks(order, name):
    table = Table(0)
    units = make_units(name, VIT)
    found = order_of(order, units, VIT, table)
    assert (table.evaluations, table.walks) == (78, 12)
    expected, evaluations = oracle.greedy(
        sets(units.masks), Table(0).score, highest=isinstance(order, KeepBest)
    )
    assert (found, table.evaluations) == (expected, evaluations)
    assert found != sorted(found)  # the table does not ask for the trivial order


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_greedy_picks_what_the_oracle_picks_also_among_ties(widths, seed, values, highest):
    layout = layout_of(*widths)
    units = make_units("head", layout)
    table = Table(seed, values)  # 1 to 4 different scores: nearly every step is a tie
    expected, evaluations = oracle.greedy(sets(units.masks), table.score, highest)
    assert (
        order_of((KeepBest if highest else HurtMost)(search=PLAIN), units, layout, table)
        == expected
    )
    assert table.evaluations == evaluations


def test_loss_breaks_ties_only_on_request():
    layout = layout_of(3)
    units = make_units("head", layout)

    class Tied(Evaluate):  # accuracy is the same for all, head 1 costs least, head 0 most
        images = 10

        def __call__(self, masks, images=None):
            every = torch.arange(10) if images is None else images
            loss = masks.double() @ torch.tensor([9.0, 1.0, 4.0]).double()
            return Scores((every < 5).expand(len(masks), -1), loss[:, None].expand(-1, len(every)))

    assert order_of(KeepBest(), units, layout, Tied()) == [0, 1, 2]
    assert order_of(KeepBest("loss"), units, layout, Tied()) == [1, 2, 0]
    assert order_of(HurtMost("loss"), units, layout, Tied()) == [0, 2, 1]
    with pytest.raises(UserError, match="tie_break is one of index, loss"):
        KeepBest("lowest")


# --- random orders


def test_random_units_are_seeded_permutations():
    units = make_units("layer", VIT)
    paths = Random(repeats=5, seed=7).paths(units, VIT)
    assert [path.seed for path in paths] == [7, 8, 9, 10, 11]
    assert all(sorted(path.names) == sorted(units.names) for path in paths)
    assert len({path.names for path in paths}) == 5
    (again,) = Random(repeats=1, seed=9).paths(units, VIT)
    assert again.names == paths[2].names


@pytest.mark.parametrize("k", [1, 5])
def test_random_per_layer_takes_k_heads_of_each_layer(k):
    (path,) = Random(repeats=1, per_layer=True, heads_per_step=k).paths(
        make_units("head", VIT), VIT
    )
    for step, mask in enumerate(path.masks()):
        assert [int(part.sum()) for part in VIT.split(mask)] == [min(12, k * step)] * 12
    layers = [tuple(part.tolist()) for part in VIT.split(path.masks()[1])]
    assert len(set(layers)) > 1  # the layers draw on their own, this is not an index unit


def test_random_per_layer_thins_uneven_layers_alike():
    (path,) = Random(repeats=1, per_layer=True).paths(make_units("head", SWIN), SWIN)
    masks = path.masks()
    assert len(masks) == 13 and masks[-1].all() and (masks.int().diff(dim=0) >= 0).all()
    for step, mask in enumerate(masks):
        for site, part in zip(SWIN.sites, SWIN.split(mask), strict=True):
            assert abs(int(part.sum()) - step * site.num_heads / 12) <= 0.5


def test_random_draws_each_head_equally_often():
    layout, repeats = layout_of(4, 4), 400
    paths = Random(repeats=repeats, per_layer=True).paths(
        make_units("head", layout), layout, steps=1
    )
    share = torch.stack([path.masks()[1] for path in paths]).double().mean(0)
    # binomial standard deviation sqrt(1/4 * 3/4 / 400) = 0.022; the seeds are fixed
    torch.testing.assert_close(share, torch.full((8,), 0.25).double(), atol=0.08, rtol=0)


def test_random_leaves_excluded_layers_alone():
    layout = layout_of(2, 2, 4)
    (path,) = Random(repeats=1, per_layer=True).paths(make_units("head", layout, [-1]), layout)
    assert path.masks()[-1].tolist() == [True] * 4 + [False] * 4 and len(path.names) == 2


@pytest.mark.parametrize(
    "options", [{"repeats": 0}, {"heads_per_step": 0, "per_layer": True}, {"heads_per_step": 2}]
)
def test_random_refuses_impossible_options(options):
    with pytest.raises(UserError, match="masking order random"):
        Random(**options)


# --- intervals


@pytest.mark.parametrize("images", [1, 7, 10_000])
def test_wilson_interval_agrees_with_scipy(images):
    correct = torch.tensor(sorted({0, images // 3, images - 1, images}))
    low, high = wilson(correct, torch.tensor(images))
    expected = torch.tensor([oracle.wilson(int(c), images) for c in correct], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([low, high], 1), expected, rtol=1e-12, atol=1e-15)


# --- curves


def test_a_searched_curve_is_chosen_on_one_split_and_reported_on_both():
    select, report = Table(0), Table(1)
    rows = masking_curve(
        VIT, CurveSpec("head_max", "index", KeepBest(search=PLAIN)), select, report
    )
    assert all(tuple(row) == CURVE_COLUMNS for row in rows)
    assert [(row["split"], row["step"]) for row in rows] == [
        (s, k) for s in ("validation", "test") for k in range(13)
    ]
    assert report.evaluations == 13 and report.walks == 1
    order, _ = oracle.greedy(sets(make_units("index", VIT).masks), Table(0).score, highest=True)
    assert [row["unit"] for row in rows[13:]] == ["", *(f"index {unit}" for unit in order)]
    for row in rows:
        masked = frozenset(map(int, row["masked"].split()))
        correct = (Table(0) if row["split"] == "validation" else Table(1)).score(masked)
        assert row["heads_masked"] == len(masked) == 12 * row["step"]
        assert row["accuracy"] == correct / IMAGES
        assert row["loss"] == pytest.approx((IMAGES - correct) / IMAGES, rel=1e-12)
        assert (row["low"], row["high"]) == pytest.approx(oracle.wilson(correct, IMAGES), rel=1e-12)
        assert row["seed"] == ""


def test_one_split_gives_one_set_of_rows():
    table = Table(0)
    rows = masking_curve(
        VIT, CurveSpec("c", "index", KeepBest(search=PLAIN)), table, table, splits=("test", "test")
    )
    assert [row["split"] for row in rows] == ["test"] * 13
    assert table.evaluations == 78 + 13


def test_a_random_curve_has_every_repeat_and_their_mean():
    select, report = Table(0), Table(1)
    rows = masking_curve(
        VIT, CurveSpec("random", "layer", Random(repeats=4, seed=2)), select, report, steps=3
    )
    assert select.evaluations == 0 and report.walks == 1
    assert [row["seed"] for row in rows] == [
        seed for seed in (2, 3, 4, 5, "mean") for _ in range(4)
    ]
    assert {row["split"] for row in rows} == {"test"}
    for step in range(1, 4):
        values = [row["accuracy"] for row in rows if row["step"] == step and row["seed"] != "mean"]
        (mean,) = [row for row in rows if row["step"] == step and row["seed"] == "mean"]
        assert mean["accuracy"] == pytest.approx(sum(values) / 4, rel=1e-12)
        low, high = oracle.t_interval(values)
        assert (mean["low"], mean["high"]) == pytest.approx((max(low, 0), min(high, 1)), rel=1e-9)
        assert (mean["heads_masked"], mean["masked"], mean["unit"]) == (12 * step, "", "")


def test_the_interval_over_random_orders_stays_between_none_and_all():
    """Student's interval of two accuracies, .999 and 1, would end at 1.006, above the figure; of 0 and .001 below 0."""
    few = curve("random", [0, 1], [0.9995, 0.0005], seeds=(0, 1)).points
    assert few.accuracy.tolist() == pytest.approx([0.9995, 0.0005])
    assert few.high[0] == 1 > few.low[0] > 0.99 and few.low[1] == 0 < few.high[1] < 0.01


def test_a_single_step_is_the_same_point_and_searches_no_further():
    spec = CurveSpec("head_max", "index", KeepBest(search=PLAIN))
    whole = masking_curve(VIT, spec, Table(0), Table(1))
    for step in (0, 1, 4, 12):
        select, report = Table(0), Table(1)
        rows = masking_curve(VIT, spec, select, report, step=step)
        assert alone(rows) == alone([row for row in whole if row["step"] == step])
        points = 1 if step == 0 else 2  # it is compared with the unmasked model
        assert report.evaluations == points
        assert select.evaluations == sum(range(12 - step + 1, 13)) + points
    assert masking_curve(VIT, spec, Table(0), Table(1), step=13) == []
    assert len(masking_curve(VIT, spec, Table(0), Table(1), steps=4)) == 2 * 5


@pytest.mark.parametrize("option", ["step", "steps"])
def test_negative_steps_are_refused(option):
    with pytest.raises(UserError, match=f"^{option}: expected a whole number of at least 0"):
        masking_curve(
            VIT, CurveSpec("c", "index", KeepBest(search=PLAIN)), Table(0), Table(1), **{option: -1}
        )


# --- names and summaries


def test_orders_are_found_by_their_file():
    assert order_named("keep_best") == KeepBest()
    assert order_named("random", repeats=2, seed=5) == Random(repeats=2, seed=5)
    names = ", ".join(sorted(known_orders()))
    with pytest.raises(UserError, match=f"one of {names}, got 'greedy'"):
        order_named("greedy")


def test_totals_of_a_straight_line_are_known():
    p = [1.0, 0.9, 0.6, 0.2, 0.009, 0.001]
    accuracy = [0.9 - 0.004 * k for k in range(6)]
    line = curve("c", [0, 10, 20, 30, 40, 50], accuracy, p, width=0.005)  # 0.004 + 0.005 < 0.01
    # mean of a line is its middle: 0.89; 0.9 - 0.004 * 2 is the last one above 0.89
    numbers = {
        "area_shared": 0.89,
        "shared_heads": 50,
        "heads_within_1_point": 20,
        "heads_shown_within_1_point": 10,
    }
    expected = {f"c/test/{name}": value for name, value in numbers.items()}
    assert summary(totals([line])) == pytest.approx(expected)
    assert summary(totals([curve("c", [0], [0.9], [1.0])])) == {}


def test_fewer_images_never_show_that_more_heads_can_go():
    """What is not significant is not what can go: wider intervals show less, and no count grows."""
    heads, accuracy = [0, 1, 2, 3, 4], [0.9, 0.9, 0.899, 0.897, 0.86]
    shown = []
    for images in (50, 100, 1_000, 10_000, 100_000):
        width = 1.96 * (0.02 / images) ** 0.5  # two of a hundred images change
        row = totals([curve("c", heads, accuracy, [1.0] * 5, width=width)])[0]
        shown.append(row.heads_shown_within_1_point)
    assert shown == sorted(shown) and (shown[0], shown[-1]) == (0, 3)


def test_areas_are_of_the_heads_that_all_curves_reach():
    """A curve that ends before it falls must not beat one that goes on."""
    long = curve("long", [0, 6, 12, 18, 24], [0.9, 0.9, 0.8, 0.7, 0.1])
    short = curve("short", [0, 9, 15], [0.9, 0.8, 0.2])
    found = {row.curve: row for row in totals([long, short])}
    assert {row.shared_heads for row in found.values()} == {15}
    # trapezoids up to 15, where the long curve stands at 0.75
    assert found["long"].area_shared == pytest.approx((6 * 0.9 + 6 * 0.85 + 3 * 0.775) / 15)
    assert found["short"].area_shared == pytest.approx((9 * 0.85 + 6 * 0.5) / 15)
    assert (
        totals([long])[0].shared_heads == 24
        and totals([long])[0].area_shared < found["long"].area_shared
    )
    assert totals([long, short, curve("point", [0], [0.9])]) == list(found.values())


def test_nothing_is_tested_on_the_images_that_chose_the_path():
    spec = CurveSpec("c", "index", KeepBest(search=PLAIN))
    validation, test = curves_of(VIT, spec, Table(0), Table(1))
    assert (validation.split, test.split) == ("validation", "test")
    assert (validation.optimistic, test.optimistic) == (True, False) and validation.worse is None
    assert (
        totals([validation])[0].heads_shown_within_1_point
        is None
        is not totals([test])[0].heads_shown_within_1_point
    )
    (alone,) = curves_of(VIT, spec, Table(0), Table(0), splits=("test", "test"))
    assert alone.optimistic and alone.worse is None
    rows = curve_rows([validation, test])
    assert {(row["chosen_on"], row["search"], row["rescale"]) for row in rows} == {
        ("validation", "exact", 0)
    }
    assert all((row["p"] == row["p_holm"] == "") == (row["split"] == "validation") for row in rows)
    (drawn,) = curves_of(
        VIT, CurveSpec("r", "index", Random(repeats=1)), Table(0), Table(0), splits=("test", "test")
    )
    assert not drawn.optimistic and drawn.worse is not None  # nobody chose it
    assert curve_rows([drawn])[0]["chosen_on"] == curve_rows([drawn])[0]["search"] == ""


@pytest.mark.parametrize(
    ("units", "search"),
    [("index", "exact"), ("layer", "exact"), ("stage", "exact"), ("head", "screened, racing")],
)
def test_few_candidates_are_searched_exactly_and_many_fast(units, search):
    for order in (KeepBest(), HurtMost()):
        curves = curves_of(VIT, CurveSpec("c", units, order), Table(0), Table(1), steps=0)
        assert {curve.search for curve in curves} == {search}
