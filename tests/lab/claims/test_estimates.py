"""Estimates against well-known functions, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import binom

from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.lab.claims.parts import estimates
from mhprobe.lab.claims.parts.estimates import (
    early_and_late,
    go_together,
    goes_with_cost,
    late_minus_early,
    mean_over_heads,
    minus_another,
    more_often,
    most_alike,
    of_accuracy,
    over_heads,
    over_images,
    rank_correlation,
    share_of_heads,
    third_of,
)
from mhprobe.lab.claims.parts.evidence import at_share
from mhprobe.lab.papers.panels.maps import auc_interval
from mhprobe.stats.agreement import spearman_interval
from mhprobe.stats.significance import Z95, crossed

RANDOM = torch.Generator().manual_seed(3)


def drawn(*shape):
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


def test_the_mean_over_the_heads_of_one_block_is_students():
    values = drawn(5)
    values = torch.cat([values, -values])  # no skewness
    found, expected = mean_over_heads(layout_of(10), values), stats.ttest_1samp(values.numpy(), 0.3)
    ends = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert found.p(0.3) == pytest.approx(expected.pvalue)


def test_the_interval_of_skewed_heads_is_that_of_halls_transformation():
    """By sums over heads instead of the jackknife, and by his cubic root instead of a search for it."""
    values = drawn(9).exp()
    found, x = mean_over_heads(layout_of(9), values), values.numpy()
    error, quantile = stats.sem(x), stats.t.ppf(0.975, 8)
    third = 9 / 7 * ((x - x.mean()) ** 3).sum() * (9 / 8) ** 1.5
    lean = third / 9**3 / error**3
    (high,) = [
        r.real
        for r in np.roots([lean**2 / 27, lean / 3, 1, lean / 6 + quantile])
        if abs(r.imag) < 1e-9
    ]
    assert found.high == pytest.approx(x.mean() - error * high)
    assert found.p(found.high) == pytest.approx(0.05) == found.p(found.low)
    assert found.high - found.effect > 1.1 * (found.effect - found.low)
    mirrored = mean_over_heads(layout_of(9), -values)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_an_effect_that_is_sure_is_sure_whichever_way_heads_are_skewed(monkeypatch):
    """Hall's cubic is flat where the skewness times t is -3: there p would be large, however sure the effect."""
    values = 10 - drawn(24).exp()
    found, cuts = (
        mean_over_heads(layout_of(6, 6, 6, 6), values),
        [8 - step / 2 for step in range(17)],
    )
    ps = [found.p(cut) for cut in cuts]
    assert ps == sorted(ps, reverse=True) and ps[-1] < 1e-4
    monkeypatch.setattr(estimates, "FARTHEST", 1e9)  # the control: the cubic as it is
    assert max(found.p(cut) / p for cut, p in zip(cuts, ps, strict=True)) > 3


@pytest.mark.parametrize("sign", [1, -1])
def test_skewed_heads_are_too_small_to_matter_no_more_often_than_they_should(sign):
    """At the cut, where an interval below it is a mistake. Student's leaves it out in a tenth of the draws."""
    draws, wrong, students = 300, 0, 0
    random = torch.Generator().manual_seed(3)
    truth = sign * math.exp(0.5)
    for _ in range(draws):
        values = sign * torch.randn(24, generator=random, dtype=torch.float64).exp()
        found = mean_over_heads(layout_of(6, 6, 6, 6), values)
        wrong += found.high < truth if sign > 0 else found.low > truth
        inside = values.view(4, 6).var(1).sum() / 6 / 16
        half = stats.t.ppf(0.975, 20) * math.sqrt(float(inside))
        students += abs(found.effect) + half < abs(truth)
    assert wrong <= binom.ppf(0.999, draws, 0.05) < students


def test_blocks_do_not_vary_their_heads_do():
    half = drawn(3, 2)
    of_blocks = torch.cat([half, -half], 1)  # no skewness, which would move the ends
    values = of_blocks.flatten() + 100 * torch.arange(3).repeat_interleave(4)
    parts = of_blocks.var(1) / 4 / 9  # of a mean of three means
    freedom = float(
        parts.sum() ** 2 / (parts**2 / 3).sum()
    )  # Satterthwaite's: a block that varies more counts more
    found = mean_over_heads(layout_of(4, 4, 4), values)
    assert 3 < freedom < 9
    assert found.high - found.low == pytest.approx(
        2 * stats.t.ppf(0.975, freedom) * math.sqrt(float(parts.sum()))
    )


def test_late_minus_early_is_a_difference_of_means_without_the_middle():
    values = torch.tensor([1.0, 3.0, 5.0, 7.0, 100.0, 100.0, 7.0, 8.0, math.nan, 9.0, 4.0]).double()
    found = late_minus_early(layout_of(2, 2, 2, 2, 3), values)
    assert found.effect == pytest.approx((7 + 8 + 9 + 4) / 4 - (1 + 3 + 5 + 7) / 4)


def test_the_mean_over_images_is_students():
    values = drawn(40)
    found, expected = over_images(values), stats.ttest_1samp(values.numpy(), 0.2)
    ends = expected.confidence_interval()
    assert (found.low, found.high, found.p(0.2)) == pytest.approx(
        (ends.low, ends.high, expected.pvalue)
    )


def test_a_few_random_draws_leave_few_degrees_of_freedom():
    rows = drawn(5, 300) + 0.3 * drawn(5, 1)
    found, expected = over_images(rows), crossed(rows)
    assert (found.effect, found.low, found.high) == pytest.approx(
        (expected.difference, expected.low, expected.high)
    )
    assert found.p(0.0) == pytest.approx(expected.p) and found.p(0.0) > over_images(rows.mean(0)).p(
        0.0
    )


def images_of(both, won, lost, neither):
    better, worse = (
        [True] * (both + won) + [False] * (lost + neither),
        [True] * both + [False] * won,
    )
    return torch.tensor(better), torch.tensor(worse + [True] * lost + [False] * neither)


def test_against_nothing_the_score_of_accuracy_is_mcnemars():
    found = of_accuracy(*images_of(50, 20, 8, 22))
    assert found.effect == pytest.approx(0.12)
    assert found.p(0.0) == pytest.approx(2 * stats.norm.sf(12 / math.sqrt(28)))
    assert found.low < 0.12 < found.high and found.p(found.low) == pytest.approx(0.05) == found.p(
        found.high
    )
    mirrored = of_accuracy(*images_of(50, 8, 20, 22))
    assert (-mirrored.low, -mirrored.high) == pytest.approx((found.high, found.low), abs=1e-6)


def test_where_no_image_differs_there_is_an_interval_all_the_same():
    found = of_accuracy(*images_of(60, 0, 0, 40))
    end = Z95**2 / (100 + Z95**2)  # where the square of d is z^2 (d - d^2) / n
    assert (found.effect, found.low, found.high) == pytest.approx((0, -end, end), abs=1e-6)
    for counts in ((0, 100, 0, 0), (0, 0, 100, 0)):
        sure = of_accuracy(*images_of(*counts))
        assert sure.low <= sure.effect <= sure.high and sure.low >= -1 and sure.high <= 1


def test_the_score_keeps_what_it_promises_at_holms_first_step():
    """Exactly, over all that 2,000 images of which a point is lost could show; by the images' own error it does not."""
    images, level = 2000, 0.001
    chance = {lost: stats.binom.pmf(lost, images, 0.01) for lost in range(21)}
    by_score = of_own = 0.0
    for lost, of in chance.items():
        by_score += of * (of_accuracy(*images_of(images - lost, 0, lost, 0)).p(-0.01) < level)
        error = math.sqrt(max(lost, 1) / images / images)
        of_own += of * (2 * stats.norm.sf((0.01 - lost / images) / error) < level)
    assert by_score < level < of_own


def test_a_share_is_binomial():
    flags = torch.tensor([True] * 9 + [False] * 11)
    found, expected = (
        share_of_heads(flags, ~flags).beyond(0.2),
        stats.binomtest(9, 20).proportion_ci(method="exact"),
    )
    assert (found.low, found.high) == pytest.approx((expected.low - 0.2, expected.high - 0.2))
    assert found.p(0.0) == pytest.approx(2 * stats.binomtest(9, 20, 0.2, "greater").pvalue)
    assert found.p(0.5) == pytest.approx(2 * stats.binomtest(9, 20, 0.7, "less").pvalue)
    assert found.p(-0.3) == 0


def test_the_power_of_a_share_is_exact():
    flags = torch.zeros(72, dtype=torch.bool)
    fewest = next(
        k for k in range(72) if stats.binomtest(k, 72).proportion_ci(method="exact").low > 0.05
    )
    assert share_of_heads(flags, ~flags).power(0.05, 0.1) == pytest.approx(
        stats.binom.sf(fewest - 1, 72, 0.1)
    )
    assert share_of_heads(flags, torch.arange(72) >= 5, images=9).power(0.05, 0.1) == pytest.approx(
        stats.binom.sf(fewest + 4, 72, 0.1)
    )
    assert share_of_heads(flags[:5], ~flags[:5]).power(0.9, 0.95) == 0


def test_heads_of_which_images_tell_nothing_count_for_either_side():
    sure, excluded = torch.arange(20) < 5, torch.arange(20) >= 15
    found = share_of_heads(sure, excluded, images=300)
    assert found.low == pytest.approx(stats.binomtest(5, 20).proportion_ci(method="exact").low)
    assert found.high == pytest.approx(stats.binomtest(15, 20).proportion_ci(method="exact").high)
    assert (found.unit, found.count, found.p(0.5)) == ("images", 300, 1.0)


def test_the_hotter_one_is_counted_as_in_the_figure_of_heat():
    hot, cold = drawn(60) + 0.5, drawn(50)
    inside = torch.arange(110) < 60
    found = more_often(torch.cat([hot, cold]), inside)
    area = float((hot[:, None] > cold).double().mean())
    assert found.effect == pytest.approx(area - 0.5)
    assert (found.low + 0.5, found.high + 0.5) == pytest.approx(
        auc_interval(area, 60, 50), abs=2e-3
    )  # t for z
    with pytest.raises(UserError, match="60 images are right and 0 wrong"):
        more_often(hot, inside[:60])


def test_a_correlation_in_one_block_is_spearmans():
    first = drawn(30)
    second = first + drawn(30)
    found = go_together(layout_of(30), first, second)
    assert found.effect == pytest.approx(stats.spearmanr(first, second).statistic)
    assert found.low < found.effect < found.high < 1


def test_what_blocks_alone_explain_is_no_correlation_of_heads():
    block = torch.arange(6).repeat_interleave(8).double()
    found = go_together(layout_of(*[8] * 6), block + 0.1 * drawn(48), block + 0.1 * drawn(48))
    assert abs(found.effect) < 0.5 < stats.spearmanr(block, block).statistic


def test_noise_of_few_images_is_no_sign_that_nothing_goes_together():
    layout, truth = layout_of(*[20] * 5), drawn(100)
    for images, told in ((40, False), (4000, True)):
        error = 20 / math.sqrt(images)
        value = truth + error * drawn(100)
        columns = {
            "value": value,
            "low": value - 1.96 * error,
            "high": value + 1.96 * error,
            "images": images,
        }
        found = goes_with_cost(layout, truth, columns)
        assert (found.high - found.low < 1) == told
        assert told or (found.unit == "images" and found.p(0.3) == 1)
        assert (
            told or found.needed is None or found.needed > 400
        )  # 1600 are so many that four fifths are of heads


def test_pairs_are_correlated_within_blocks():
    layout, first = layout_of(5, 6), drawn(11, 11)
    second = -first
    assert go_together(layout, first, second).effect == pytest.approx(-1)


def test_pairs_of_a_head_vary_together():
    """The error of a mean over pairs is that of a U-statistic: about twice what the means of the heads vary."""
    layout = layout_of(12)
    errors, means = [], []
    for _ in range(200):
        of_head = drawn(12)
        found = mean_over_heads(layout, of_head[:, None] + of_head)
        errors.append((found.high - found.low) / 2 / stats.t.ppf(0.975, 11))
        means.append(found.effect)
    assert float(torch.tensor(errors).square().mean().sqrt()) == pytest.approx(
        float(torch.tensor(means).std()), rel=0.2
    )


def test_chance_is_subtracted_and_said_where_it_is_not_the_same_on_both_sides():
    values, chance = drawn(6, 6), torch.rand(6, 6, generator=RANDOM)
    pairs = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool() & ~torch.eye(
        6, dtype=torch.bool
    )
    found = mean_over_heads(layout_of(3, 3), values, chance)
    assert found.effect == pytest.approx(float((values - chance)[pairs].mean()))
    assert found.chance == pytest.approx(float(chance[pairs].mean()))
    first = torch.arange(6) < 3
    against = mean_over_heads(layout_of(3, 3), values, chance, first, ~first)
    above = (values - chance).where(pairs, torch.nan)
    assert against.effect == pytest.approx(float(above[:3].nanmean() - above[3:].nanmean()))
    assert math.isnan(against.chance)


def test_chance_stands_on_the_same_scale_as_an_effect_beyond_a_half():
    values = drawn(12)
    found = over_heads(layout_of(12), lambda kept: float(values[kept].mean()), chance=1 / 3)
    assert found.beyond(0.5).effect == pytest.approx(found.effect - 0.5)
    assert found.beyond(0.5).chance == pytest.approx(1 / 3 - 0.5)


def test_a_rank_correlation_has_the_interval_of_the_other_pages():
    found, expected = rank_correlation(0.6, 72), spearman_interval(0.6, 72)
    assert (found.low, found.high) == pytest.approx(expected, abs=5e-3)  # t for z
    few, half = (
        rank_correlation(0.6, 13),
        stats.t.ppf(0.975, 10) * math.sqrt((1 + 0.6**2 / 2) / 10),
    )  # 13 - 3 = 10
    assert (few.low, few.high) == pytest.approx(
        [math.tanh(math.atanh(0.6) + end) for end in (-half, half)], rel=1e-9
    )
    with pytest.raises(UserError, match="too few to correlate"):
        rank_correlation(0.6, 6)


def test_two_networks_add_their_errors():
    values = drawn(2, 400)
    one, other = (mean_over_heads(layout_of(400), each) for each in values)
    found = minus_another(one, {**vars(other), "count": other.count})
    expected = stats.ttest_ind(*values.numpy()).confidence_interval()
    assert (found.low, found.high) == pytest.approx(
        (expected.low, expected.high), abs=2e-3
    )  # t of fewer degrees
    assert found.count == 800


def test_the_nearest_head_is_looked_for_in_the_same_block():
    values = torch.tensor([[9.0, 0.2, 0.9], [0.2, 9.0, 0.1], [0.9, 0.1, 9.0]])
    assert most_alike(layout_of(2, 1), values)[:2].tolist() == pytest.approx([0.2, 0.2])
    assert most_alike(layout_of(2, 1), values)[2].isnan()


def test_too_few_heads_or_images_are_refused():
    with pytest.raises(UserError, match="too few to vary"):
        mean_over_heads(layout_of(1, 1, 1, 1), drawn(4))
    with pytest.raises(UserError, match="expected 10"):
        over_images(torch.zeros(9))
    with pytest.raises(UserError, match="two at the least"):
        late_minus_early(layout_of(8), drawn(8))
    with pytest.raises(UserError, match="three at the least"):
        third_of(layout_of(4, 4))
    with pytest.raises(UserError, match="not defined"):
        go_together(layout_of(9), torch.ones(9), drawn(9))


def test_a_mask_at_a_share_closes_no_more_than_that():
    path = torch.ones(5, 10).tril(-1).bool()  # after step s the first s of ten
    path = torch.stack([path, path.flip(1)])
    assert at_share(path, 0.3).sum(1).tolist() == [3, 3]
    assert at_share(path, 0.35).sum(1).tolist() == [3, 3]
    assert at_share(path[0], 0.05).sum() == 0


def test_thirds_and_halves_are_of_blocks_and_not_of_attentions():
    """A block may have several attentions side by side."""
    layout = HeadLayout(
        tuple(HeadSite(f"s{site}", 0, block, 1, 1) for site, block in enumerate([0, 0, 0, 0, 1, 2]))
    )
    assert third_of(layout).tolist() == [0, 0, 0, 0, 1, 2]
    early, late = early_and_late(layout)
    assert early.tolist() == [True] * 4 + [False] * 2 and late.tolist() == [False] * 5 + [True]
    with pytest.raises(UserError, match="the network has 2 blocks"):
        third_of(HeadLayout(layout.sites[:5]))


def test_a_mean_that_hangs_on_one_pair_has_no_error_and_says_so():
    """Without either of its heads there is no pair: nothing to take a mean of, and nothing is warned of."""
    values = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="is not defined here"):
        late_minus_early(layout_of(2, 6), values)
    assert math.isfinite(late_minus_early(layout_of(3, 5), values).effect)
