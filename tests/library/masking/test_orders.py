"""Orders by a score, beam search and the order that knows pairs, against loops over tables."""

from __future__ import annotations

import csv
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.beam import Beam
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.interactions import Interactions
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.search.exact import Exact
from oracles import masking as oracle

VIT = layout_of(4, 4, 4)


class Table(Evaluate):
    """Numbers for every set of masked heads, drawn once: images right, loss, and a score of each head."""

    images = 500

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.evaluations, self.measured = seed, 0, []

    def draw(self, *what) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def correct(self, masked: frozenset[int]) -> int:
        return self.draw("correct", sorted(masked)).randrange(self.images + 1)

    def loss(self, masked: frozenset[int]) -> float:
        return self.draw("loss", sorted(masked)).random()

    def __call__(self, masks, images=None):
        self.evaluations += len(masks)
        sets = [frozenset(torch.nonzero(mask).flatten().tolist()) for mask in masks]
        every = torch.arange(self.images) if images is None else images
        right = every < torch.tensor([self.correct(masked) for masked in sets])[:, None]
        loss = torch.tensor([self.loss(masked) for masked in sets], dtype=torch.float64)
        return Scores(right, loss[:, None].expand(-1, len(every)))

    def score(self, masked: frozenset[int], heads: int) -> list[float]:
        return [self.draw("score", sorted(masked), head).random() for head in range(heads)]

    def measure(self, make, mask, column="value"):
        self.measured.append((make, int(mask.sum()), column))
        return torch.tensor(
            self.score(frozenset(torch.nonzero(mask).flatten().tolist()), len(mask))
        )


class Fixed(Table):
    """The same scores whatever is masked."""

    def __init__(self, score: list[float]) -> None:
        super().__init__()
        self.fixed = torch.tensor(score)

    def measure(self, make, mask, column="value"):
        return self.fixed


def path_of(order, units, layout, table, **more) -> list[int]:
    (path,) = order.paths(units, layout, table, **more)
    return [units.names.index(name) for name in path.names]


def sets_of(units) -> list[frozenset[int]]:
    return [frozenset(torch.nonzero(mask).flatten().tolist()) for mask in units.masks]


def a_measure(layout):  # what Table.measure is asked for; it never makes one
    raise AssertionError


# --- by score


def test_the_least_important_goes_first_or_last_and_equals_by_index():
    layout = layout_of(2, 2)
    units = make_units("head", layout)
    table = Fixed([0.5, 0.1, 0.5, -3.0])
    assert path_of(ByScore(measure=a_measure), units, layout, table) == [3, 1, 0, 2]
    assert path_of(ByScore(measure=a_measure, first="highest"), units, layout, table) == [
        0,
        2,
        1,
        3,
    ]


def test_a_unit_is_worth_the_sum_of_its_heads():
    layout = layout_of(2, 2)
    table = Fixed([0.5, 0.1, 0.5, -3.0])
    assert path_of(ByScore(measure=a_measure), make_units("layer", layout), layout, table) == [1, 0]
    assert path_of(ByScore(measure=a_measure), make_units("index", layout), layout, table) == [1, 0]
    table = Fixed([0.0, 0.1, 0.0, 0.2])
    assert path_of(ByScore(measure=a_measure), make_units("index", layout), layout, table) == [0, 1]


@pytest.mark.parametrize("every", [1, 3, 5])
def test_rescoring_asks_the_masked_model_every_k_steps(every):
    units, table = make_units("head", VIT), Table()
    order = ByScore(measure=a_measure, rescore_every=every)
    expected = oracle.by_score(sets_of(units), lambda masked: table.score(masked, 12), every)
    assert path_of(order, units, VIT, table) == expected
    assert [masked for _, masked, _ in table.measured] == list(range(0, 12, every))
    assert expected != oracle.by_score(sets_of(units), lambda masked: table.score(masked, 12), 100)


def test_scored_once_the_measure_runs_once():
    table = Table()
    path_of(ByScore(measure=a_measure, column="low"), make_units("head", VIT), VIT, table)
    assert table.measured == [(a_measure, 0, "low")] and table.evaluations == 0


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def test_a_table_of_a_run_is_an_order(tmp_path):
    layout = layout_of(2, 1)
    path = write(
        tmp_path / "t.csv", [("head", "value", "p_open"), (2, 1, 0.9), (0, 2, 0.1), (1, 3, 0.5)]
    )
    units = make_units("head", layout)
    assert path_of(ByScore(table=path, column="p_open"), units, layout, Table()) == [0, 1, 2]
    assert path_of(ByScore(table=path), units, layout, Table()) == [2, 0, 1]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("head", "score"), (0, 1)], "no column value; it has head, score. Expected"),
        (
            [("head", "value"), (0, 1), (1, 2)],
            "2 rows, column head: expected one for each of the model's 3",
        ),
        (
            [("head", "value"), (0, 1), (1, 2), (1, 3)],
            "row 3, column head: head 1 is in row 2 already",
        ),
        (
            [("head", "value"), (0, 1), (1, 2), (2, "x")],
            "row 3, column value: expected a number, got 'x'",
        ),
        ([("head", "value"), (0, 1), (1, 2), (2, "nan")], "blocks.1.attn head 0 is nan"),
        ([], "no column head, value"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path, rows, says):
    layout = layout_of(2, 1)
    order = ByScore(table=write(tmp_path / "t.csv", rows))
    with pytest.raises(UserError, match=says) as error:
        order.paths(make_units("head", layout), layout, Table())
    assert "\n" not in str(error.value)


def test_a_score_that_is_no_number_names_its_head_unless_its_layer_is_left_out():
    layout = layout_of(2, 2)
    table = Fixed([0.5, 0.1, 0.5, torch.nan])
    order = ByScore(measure=a_measure)
    with pytest.raises(UserError, match=r"blocks\.1\.attn head 1 is nan"):
        order.paths(make_units("head", layout), layout, table)
    assert path_of(order, make_units("head", layout, [-1]), layout, table) == [1, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "a measure or a table, got neither"),
        ({"measure": a_measure, "table": "t.csv"}, "a measure or a table, got both"),
        ({"measure": a_measure, "first": "middle"}, "first is one of lowest, highest"),
        ({"measure": a_measure, "rescore_every": 0}, "from 1"),
        ({"table": "nowhere.csv"}, "no file nowhere.csv"),
    ],
)
def test_impossible_options_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        ByScore(**options)


# --- beam


def test_width_one_is_greedy():
    units = make_units("head", VIT)
    assert path_of(Beam(1), units, VIT, Table(3)) == path_of(
        KeepBest(search=Exact()), units, VIT, Table(3)
    )


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 5),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_beam_finds_what_the_oracle_finds(widths, seed, width, steps):
    layout, table = layout_of(*widths), Table(seed)
    units = make_units("head", layout)
    expected = oracle.beam(sets_of(units), table.correct, width, min(steps, len(units)))
    assert path_of(Beam(width), units, layout, table, steps=steps) == expected


def test_a_wide_beam_finds_the_best_set_there_is():
    units, table = make_units("head", VIT), Table(1)
    path = path_of(Beam(1000), units, VIT, table, steps=3)
    best = max(
        table.correct(frozenset({a, b, c})) for a in range(12) for b in range(a) for c in range(b)
    )
    assert table.correct(frozenset(path)) == best
    assert (
        table.correct(frozenset(path_of(Beam(1), units, VIT, table, steps=3))) < best
    )  # greed does not find it


def test_beam_needs_a_width():
    with pytest.raises(UserError, match="at least 1, got 0"):
        Beam(0)


# --- pairs


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 10**6), st.integers(0, 12)
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_interactions_follow_the_predicted_loss(widths, seed, among):
    layout, table = layout_of(*widths), Table(seed)
    units = make_units("head", layout)
    expected = oracle.interactions(sets_of(units), table.loss, among)
    assert path_of(Interactions(among), units, layout, table) == expected


def test_two_heads_that_stand_in_for_each_other_do_not_go_together():
    layout = layout_of(4)

    class Twins(
        Table
    ):  # 0 and 1 do the same: harmless alone, fatal together; 2 and 3 cost a little each
        def loss(self, masked):
            return 2.0 * ({0, 1} <= masked) + 0.1 * (2 in masked) + 0.2 * (3 in masked)

    units = make_units("head", layout)
    assert path_of(Interactions(4), units, layout, Twins()) == [0, 2, 3, 1]
    assert path_of(Interactions(0), units, layout, Twins()) == [0, 1, 2, 3]  # without pairs they do


def test_pairs_are_measured_among_the_least_harmful_only():
    table = Table()
    path_of(Interactions(5), make_units("head", VIT), VIT, table)
    assert table.evaluations == 12 + 1 + 10
