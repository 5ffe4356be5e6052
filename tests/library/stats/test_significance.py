"""Tests and intervals against scipy, published numbers and simulation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from mhprobe.stats.intervals import SHARE, SIZE, interval
from mhprobe.stats.significance import (
    benjamini_hochberg,
    beyond,
    crossed,
    holm,
    lower,
    mcnemar,
    paired_difference,
    significant,
    standard_error,
    two_sided,
    wilson,
)


def test_mcnemar_is_the_exact_binomial_test():
    pairs = [(0, 0), (1, 0), (0, 5), (3, 9), (40, 60), (7, 7), (500, 431)]
    lost, won = torch.tensor(pairs).unbind(1)
    expected = [stats.binomtest(b, b + c).pvalue if b + c else 1.0 for b, c in pairs]
    torch.testing.assert_close(mcnemar(lost, won), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(mcnemar(won, lost), mcnemar(lost, won))
    assert (
        0 < mcnemar(torch.tensor([5000]), torch.tensor([0])).item() < 1e-300
    )  # 2 ** -4999 is below every double


def test_holm_by_hand():
    p = torch.tensor([0.01, 0.04, 0.03, 0.005], dtype=torch.float64)
    torch.testing.assert_close(holm(p), torch.tensor([0.03, 0.06, 0.06, 0.02], dtype=torch.float64))
    with_gap = torch.tensor([0.01, torch.nan, 0.04, 0.03, 0.005], dtype=torch.float64)
    torch.testing.assert_close(
        holm(with_gap)[[0, 2, 3, 4]], holm(p)
    )  # NaN is no test, so it costs nothing
    assert holm(with_gap)[1].isnan()
    assert (holm(torch.tensor([0.5, 0.9])) == 1).all()


def test_holm_keeps_the_chance_of_any_false_alarm():
    p = torch.rand(4000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alarms = sum(bool((holm(row) < 0.05).any()) for row in p) / len(p)
    assert abs(alarms - 0.05) < 3.5 * math.sqrt(0.05 * 0.95 / len(p))
    assert (p < 0.05).any(1).double().mean() > 0.5  # without it there would be one in most families


@pytest.mark.parametrize(
    ("table", "low", "high"),
    # Newcombe 1998, table II, method 10 with the continuity-corrected phi: (both, lost, won,
    # neither)
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((20, 12, 2, 16), 0.0562, 0.3290),
        ((29, 1, 0, 0), -0.0832, 0.1667),
    ],
)
def test_the_interval_of_a_paired_difference_is_the_published_one(table, low, high):
    both, lost, won, neither = torch.tensor(table)
    got = paired_difference(both, lost, won, both + lost + won + neither)
    assert got[0].item() == pytest.approx(low, abs=6e-4) and got[1].item() == pytest.approx(
        high, abs=6e-4
    )


def test_the_interval_covers_and_stays_within_its_range():
    generator = torch.Generator().manual_seed(1)
    p = torch.tensor([0.6, 0.07, 0.04, 0.29])  # a difference of 0.03
    images, repeats = 300, 4000
    drawn = torch.multinomial(p, images * repeats, replacement=True, generator=generator).view(
        repeats, images
    )
    both, lost, won = ((drawn == kind).sum(1) for kind in range(3))
    low, high = paired_difference(both, lost, won, torch.tensor(images))
    covered = ((low <= 0.03) & (high >= 0.03)).double().mean().item()
    assert 0.94 < covered < 0.975  # his own simulations: 0.95 to 0.97
    for table in ((0, 0, 0), (10, 0, 0), (0, 10, 0), (0, 0, 10)):
        low, high = paired_difference(*map(torch.tensor, table), torch.tensor(10))
        assert -1 <= low <= high <= 1 and high > low


def test_wilson_is_scipys():
    for count, images in ((0, 10), (3, 10), (10, 10), (68, 100)):
        low, high = wilson(torch.tensor(count), torch.tensor(images))
        expected = stats.binomtest(count, images).proportion_ci(method="wilson")
        assert (low.item(), high.item()) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_standard_errors_and_normal_tests_are_those_of_the_sample():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.2
    error = standard_error(x.sum(0), x.square().sum(0), torch.tensor(50))
    torch.testing.assert_close(error, x.std(0) / 50**0.5)
    p = two_sided(x.mean(0), error)
    torch.testing.assert_close(
        p, torch.from_numpy(2 * stats.norm.sf((x.mean(0) / error).abs().numpy()))
    )
    assert two_sided(torch.zeros(1), torch.zeros(1)) == 1
    assert (
        0 < two_sided(torch.ones(1).double(), torch.tensor([0.01]).double()) < 1e-300
    )  # 100 standard errors


def test_without_spread_the_signs_are_tested():
    """Two images alike say little and a thousand much: both had p = 0."""
    for count in (2, 3, 7, 1000):
        alike = torch.full(
            (count, 1), 0.1, dtype=torch.float64
        )  # sums of squares leave a spread of rounding
        error = standard_error(alike.sum(0), alike.square().sum(0), torch.tensor(count))
        p = two_sided(alike.mean(0), error, torch.tensor(count - 1))
        assert p.item() == pytest.approx(stats.binomtest(count, count).pvalue, rel=1e-9) and p > 0
    assert two_sided(torch.ones(1), torch.zeros(1), torch.tensor(0)).isnan()  # one image


def test_a_standard_error_needs_two_values():
    x = torch.ones(1, 3)
    assert standard_error(x[:1].sum(0), x[:1].square().sum(0), torch.tensor(1)).isnan().all()


@pytest.mark.peer
def test_holm_is_that_of_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = torch.rand(30, generator=torch.Generator().manual_seed(3), dtype=torch.float64) ** 3
    torch.testing.assert_close(
        holm(p), torch.from_numpy(multitest.multipletests(p.numpy(), method="holm")[1])
    )


def test_benjamini_hochberg_is_scipys():
    from scipy.stats import false_discovery_control

    p = torch.tensor([0.03, 0.001, 0.2, 0.04, 0.9, 0.002], dtype=torch.float64)
    torch.testing.assert_close(
        benjamini_hochberg(p), torch.from_numpy(false_discovery_control(p.numpy()))
    )
    holed = torch.cat([torch.tensor([torch.nan]), p, torch.tensor([torch.nan])])
    torch.testing.assert_close(benjamini_hochberg(holed)[1:-1], benjamini_hochberg(p))
    assert benjamini_hochberg(holed)[[0, -1]].isnan().all() and len(benjamini_hochberg(p[:0])) == 0


def test_a_further_draw_is_beyond_a_level_as_often_as_it_says_whatever_the_law():
    generator = torch.Generator().manual_seed(0)
    # of a skewed law, at another place and scale in each row, as the largest of many is
    found = []
    for _ in range(100):
        law = torch.randn(30, 9, 15, generator=generator, dtype=torch.float64).amax(2)
        rows = (
            law * torch.rand(30, 1, generator=generator).double()
            + torch.randn(30, 1, generator=generator).double()
        )
        found.append(beyond(rows[:, 0], rows[:, 1:]))
    p = torch.cat(found)
    for level in (0.05, 0.5):  # 3,000 tests; those of a row share its draws
        assert float((p <= level).double().mean()) == pytest.approx(
            level, abs=5 * (level * (1 - level) / 3000) ** 0.5
        )
    assert float((p <= 0.01).double().mean()) < 0.015
    assert float(p.min()) >= 1 / (30 * 8 + 1)
    draws = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    assert beyond(torch.full((4,), 99.0).double(), draws).tolist() == [1 / 21] * 4
    assert (
        beyond(torch.zeros(2), draws[:2, :2]).isnan().all()
        and len(beyond(torch.zeros(0), draws[:0])) == 0
    )


def test_a_difference_over_seeds_and_images_is_tested_at_its_level():
    """True null: accuracies of three seeds vary, images are right together, and the mean difference is zero."""
    generator = torch.Generator().manual_seed(0)
    rejected, draws, naive = 0, 1000, 0
    for _ in range(draws):
        hard_N = torch.randn(400, generator=generator)
        right = [
            (
                torch.randn(3, 400, generator=generator)
                + hard_N
                + 0.15 * torch.randn(3, 1, generator=generator)
                > -1
            )
            for _ in range(2)
        ]
        difference_RN = right[0].double() - right[1].double()
        rejected += crossed(difference_RN).p < 0.05
        naive += crossed(difference_RN.mean(0)[None]).p < 0.05
    assert (
        rejected / draws <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5
    )  # three standard errors of a share of draws
    assert naive / draws > 0.1  # images alone: seeds would be taken for a difference of methods


def test_a_difference_of_one_seed_is_that_of_paired_images():
    torch.manual_seed(0)
    difference_RN = (torch.rand(1, 500) < 0.3).double() - (torch.rand(1, 500) < 0.2).double()
    theirs = stats.ttest_1samp(difference_RN[0].numpy(), 0)
    found = crossed(difference_RN)
    low, high = theirs.confidence_interval(0.95)
    assert found[:4] == pytest.approx(
        (float(difference_RN.mean()), low, high, theirs.pvalue), rel=1e-6
    )
    assert crossed(torch.zeros(2, 9)).p == 1


@pytest.mark.parametrize(
    ("value", "error", "within", "low", "high"),
    [
        (
            1.0 + 2**-52,
            1e-15,
            SHARE,
            1.0,
            1.0,
        ),  # two heads that are the same: their CKA is 1, but for rounding
        (1.0, 0.1, SHARE, 0.802, 1.0),
        (0.0, 0.1, SHARE, 0.0, 0.198),
        (0.0, 0.1, SIZE, 0.0, 0.198),
        (-1e-18, 1e-15, SIZE, 0.0, 0.0),
    ],
)
def test_an_estimate_at_an_end_of_its_range_has_an_interval(value, error, within, low, high):
    """Its logit or logarithm is infinite, which once left NaN."""
    value = torch.tensor(value, dtype=torch.float64)
    ends = [
        end.item() for end in interval(value, torch.tensor(error, dtype=torch.float64), 100, within)
    ]
    assert ends == pytest.approx([low, high], abs=5e-4) and ends[0] <= value <= ends[1]


# one rule of what is significant


def test_what_was_not_tested_is_not_significant():
    cells = (math.nan, None, "", 0.05, 1.0)
    assert [significant(p) for p in cells] == [False] * 5 and significant(0.049)
    p = torch.tensor([0.049, 0.05, math.nan, 1e-300])
    assert significant(p).tolist() == [True, False, False, True]
    change = torch.tensor([0.2, -0.2, -0.2, -0.2])
    assert lower(p, change).tolist() == [False, False, False, True]


def test_fewer_images_make_nothing_significantly_lower_that_is_not():
    """Of 60 equal heads at most one in twenty draws finds any, however few images there are."""
    rng, found = np.random.default_rng(0), Counter[int]()
    for images in (400, 100, 25):
        for _ in range(100):
            lost, won = rng.multinomial(images, (0.1, 0.1, 0.8), 60)[:, :2].T
            p = holm(mcnemar(torch.as_tensor(lost), torch.as_tensor(won)))
            found[images] += bool(lower(p, torch.as_tensor(won - lost)).any())
    assert max(found.values()) <= 6
