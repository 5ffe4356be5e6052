"""Searches of one greedy step: the exhaustive choice for less, or one as good as promised."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.hurt_most import HurtMost
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.search.base import SearchStep
from mhprobe.masking.search.exact import ABREAST, Exact
from mhprobe.masking.search.racing import Racing, rejected
from mhprobe.masking.search.screened import Screened
from oracles import masking as oracle

LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 3, 4) for i in range(4)))


class Margins(Evaluate):
    """A model that is a table of margins: each head adds something to every image's, alone and in pairs.

    coarse: few images and few different effects, so that ties abound.
    """

    def __init__(self, seed: int, images: int = 400, heads: int = 12, coarse: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images, self.spent, self.walks = images, 0, 0
        self.base = torch.randn(images, generator=generator) * 1.5 + 0.8
        level = 0.3 * torch.randn(heads, 1, generator=generator)
        self.head = level + 0.2 * torch.randn(heads, images, generator=generator)
        if coarse:
            self.base, self.head = self.base.round(), (2 * self.head).round() / 2

    def margins(self, masks: Tensor) -> Tensor:
        return self.base - masks.float() @ self.head

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        self.walks += 1
        margins = self.margins(masks)
        margins = margins if images is None else margins[:, images]
        self.spent += margins.numel()
        return Scores(margins > 0, torch.nn.functional.softplus(-margins).double())

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        self.spent += 2 * self.images
        # the loss softplus(-margin) along the share of a head, where masking it takes ``head`` off
        # the margin
        slope = torch.sigmoid(-self.margins(mask[None])) * -self.head
        return slope.double().mean(1), slope.double().square().mean(1)

    def score(self, masked: frozenset[int]) -> int:
        return int(self(LAYOUT.mask(sorted(masked))[None]).correct)


def order_of(order, table: Margins, steps: int | None = None) -> list[int]:
    (path,) = order.paths(make_units("head", LAYOUT), LAYOUT, table, steps)
    return [make_units("head", LAYOUT).names.index(name) for name in path.names]


def step_of(table: Margins, prefers: int, number: int = 0, heads: int = 12) -> SearchStep:
    return SearchStep(
        torch.zeros(heads, dtype=torch.bool),
        torch.eye(heads, dtype=torch.bool),
        prefers,
        number=number,
    )


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 30), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_exact_chooses_what_the_oracle_chooses_ties_included(seed, images, parts, highest, coarse):
    table = Margins(seed, images, coarse=coarse)
    expected, _ = oracle.greedy([frozenset([head]) for head in range(12)], table.score, highest)
    assert (
        order_of((KeepBest if highest else HurtMost)(search=Exact(parts, least=1)), table)
        == expected
    )


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_exact_breaks_ties_by_the_loss_like_the_exhaustive_search(seed, highest):
    order = KeepBest if highest else HurtMost
    found = [
        order_of(order("loss", Exact(parts, least=1)), Margins(seed, 20, coarse=True))
        for parts in (1, 6)
    ]
    assert found[0] == found[1]


def test_exact_looks_at_fewer_images_and_says_how_many():
    table = Margins(0)
    (path,) = KeepBest(search=Exact()).paths(make_units("head", LAYOUT), LAYOUT, table)
    assert path.exhaustive == tuple(400 * left for left in range(12, 0, -1))
    assert sum(path.spent) == table.spent < 0.8 * sum(path.exhaustive)
    plain = Margins(0)
    (path,) = KeepBest(search=Exact(parts=1)).paths(make_units("head", LAYOUT), LAYOUT, plain)
    assert path.spent == path.exhaustive and plain.walks == 12


@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(2, 30),
    st.booleans(),
    st.sampled_from(["index", "loss"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_exact_never_costs_more_than_trying_everything(seed, images, parts, highest, tie_break):
    table = Margins(seed, images, coarse=True)
    order = (KeepBest if highest else HurtMost)(tie_break, Exact(parts, least=1))
    (path,) = order.paths(make_units("head", LAYOUT), LAYOUT, table)
    assert all(spent <= most for spent, most in zip(path.spent, path.exhaustive, strict=True))


def test_exact_looks_at_no_fewer_images_at_once_than_keep_a_machine_busy():
    asked = []

    class Noting(Margins):
        def __call__(self, masks, images=None):
            asked.append(self.images if images is None else len(images))
            return super().__call__(masks, images)

    small = Exact(parts=24, least=1)
    for search, fewest in ((Exact(parts=24), 32), (small, 300 // 24 + 1)):
        asked.clear()
        table = Noting(0, 300)
        step = dataclasses.replace(
            step_of(table, 1), before=Margins(0, 300)(torch.zeros(1, 12, dtype=torch.bool))
        )
        search.choose(step, table)
        assert (
            len(asked) > 2 and fewest in asked[1:] and max(asked[1:]) == fewest
        )  # the first piece has its own size


@pytest.mark.parametrize("prefers", [1, -1])
def test_exact_stops_looking_at_a_candidate_soon_after_its_count_has_passed_the_winners(prefers):
    class Noting(Margins):
        def __call__(self, masks, images=None):
            scores = super().__call__(masks, images)
            for mask, right in zip(masks.tolist(), scores.right, strict=True):
                against[mask.index(True)] += int((right == (prefers < 0)).sum())
            return scores

    table, parts = Noting(7, 2400), 24
    before = Margins.__call__(table, torch.zeros(1, 12, dtype=torch.bool))
    against = [0] * 12
    step = dataclasses.replace(step_of(table, prefers), before=before)
    winner = Exact(parts).choose(step, table).candidate
    rivals = against[:winner] + against[winner + 1 :]
    piece = 2400 / parts
    assert against[winner] > int((before.right == (prefers < 0)).sum()) / 2  # the first piece
    assert against[winner] <= min(rivals) and max(rivals) <= against[winner] + piece * (1 + ABREAST)
    every = Margins(7, 2400)(step.masks)  # the control: they would have collected more
    assert (every.right == (prefers < 0)).sum(1).max() > max(rivals) + 2 * piece


def test_screening_evaluates_the_best_by_prediction_and_no_others():
    table = Margins(1)
    slope, square = table.slopes(torch.zeros(12, dtype=torch.bool))
    predicted = [float(-slope[head] + square[head] / 2) for head in range(12)]
    seen = []

    class Spy:
        def choose(self, step, evaluate):
            seen.append(step.units.int().argmax(1).tolist())
            return Exact().choose(step, evaluate)

    for prefers in (1, -1):
        choice = Screened(5, Spy()).choose(step_of(table, prefers), table)
        best = sorted(sorted(range(12), key=lambda head: prefers * predicted[head])[:5])
        assert seen.pop() == best
        scores = [table.score(frozenset([head])) for head in best]
        assert choice.candidate == best[scores.index(max(scores) if prefers > 0 else min(scores))]


def test_screening_predicts_the_loss_of_masking():
    table = Margins(2)
    none, single = torch.zeros(1, 12, dtype=torch.bool), torch.eye(12, dtype=torch.bool)
    change = table(single).mean_loss - table(none).mean_loss
    slope, square = table.slopes(none[0])
    error = (square / 2 - slope - change).abs()
    assert error.max() < 0.2 * change.abs().max()
    assert error.mean() < (-slope - change).abs().mean()  # the second-order term helps


def test_screening_does_nothing_where_all_may_be_seen():
    table = Margins(1)
    choice = Screened(12, Exact(parts=1)).choose(step_of(table, 1), table)
    assert table.spent == 12 * 400
    assert choice.candidate == Exact(parts=1).choose(step_of(table, 1), table).candidate


def test_screening_predicts_only_where_that_is_cheaper_than_looking():
    for best, evaluations in ((10, 12), (9, 2 + 9)):  # slopes cost two
        table = Margins(1)
        Screened(best, Exact(parts=1)).choose(step_of(table, 1), table)
        assert table.spent == evaluations * 400


@pytest.mark.parametrize("prefers", [1, -1])
def test_racing_finds_a_good_one_as_often_as_it_promises(prefers):
    failures, spent, races = 0, 0, 60
    racing = Racing(epsilon=0.01, delta=0.1, batch=100)
    for race in range(races):
        table = Margins(race, images=3000)
        choice = racing.choose(step_of(table, prefers, race), table)
        spent += table.spent
        accuracy = prefers * table(torch.eye(12, dtype=torch.bool)).accuracy
        failures += bool(accuracy[choice.candidate] < accuracy.max() - 0.01)
    assert failures <= 0.1 * races
    assert spent < 0.7 * races * 12 * 3000


def test_racing_is_exact_once_all_images_are_seen():
    for seed in range(10):
        table = Margins(seed, 50, coarse=True)
        expected = Exact(parts=1).choose(step_of(table, 1), table)
        found = Racing(epsilon=0.0, batch=7).choose(step_of(table, 1), table)
        assert found.candidate == expected.candidate


def test_racing_is_seeded():
    class Noting(Margins):
        def __call__(self, masks, images=None):
            looked.append(images.tolist())
            return super().__call__(masks, images)

    walks = []
    for seed, number in ((4, 0), (4, 0), (5, 0), (4, 1)):
        looked: list[list[int]] = []
        table = Noting(5, 2000)
        Racing(seed=seed).choose(step_of(table, -1, number), table)
        walks.append(looked)
    assert walks[0] == walks[1] and walks[0][0] != walks[2][0] and walks[0][0] != walks[3][0]


@pytest.mark.parametrize(("mean", "margin"), [(0.0, 0.0), (-0.02, 0.02), (-0.06, 0.02)])
def test_a_true_hypothesis_is_rejected_no_more_often_than_the_level(mean, margin):
    generator, images, level, rejections = torch.Generator().manual_seed(0), 500, 0.05, 0
    half = images // 20  # of each sign, shifted by the mean: a tenth of the images differ
    ups = half + round(mean * images / 2)
    values = torch.cat(
        [torch.ones(ups), -torch.ones(2 * half - ups), torch.zeros(images - 2 * half)]
    ).double()
    assert values.mean() == pytest.approx(mean, abs=1e-9)
    rows = torch.stack([values[torch.randperm(images, generator=generator)] for _ in range(2000)])
    rejections = int(rejected(rows, margin, images, -torch.tensor(level).log().item()).sum())
    assert rejections <= 2000 * level  # Ville's bound is not tight: 100 are allowed


def test_a_false_hypothesis_is_rejected_before_the_end():
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.ones(40), torch.zeros(460)]).double()
    row = values[torch.randperm(500, generator=generator)][None]
    seen = [n for n in range(1, 501) if bool(rejected(row[:, :n], 0.0, 500, 4.6)[0])]
    assert seen[0] < 300 and seen == list(range(seen[0], 501))  # and stays so


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Exact(0),
        lambda: Exact(least=0),
        lambda: Screened(0),
        lambda: Racing(delta=0),
        lambda: Racing(epsilon=-1),
    ],
)
def test_impossible_options_are_refused(wrong):
    with pytest.raises(UserError, match="masking search"):
        wrong()


def test_a_plain_table_says_what_it_cannot_do():
    class Plain(Evaluate):
        images = 10

        def __call__(self, masks, images=None):
            raise AssertionError

    with pytest.raises(UserError, match="slopes"):
        Screened(1).choose(step_of(Plain(), 1), Plain())
