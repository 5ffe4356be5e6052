"""Agreement between rankings of heads, against scipy and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from mhprobe.stats.agreement import agreement, pearson, spearman, spearman_interval


def drawn(heads: int, count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    x = torch.randn(
        count, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return {f"m{number}": row + x[0] / 2 for number, row in enumerate(x)}


def test_rank_correlations_are_scipys_also_with_ties():
    values = {**drawn(30, 4), "coarse": drawn(30, 1)["m0"].round()}
    found = agreement(values, k=5)
    matrix = stats.spearmanr(torch.stack(list(values.values())).T.numpy()).statistic
    torch.testing.assert_close(found.spearman, torch.from_numpy(matrix))
    assert len(values["coarse"].unique()) < 30  # there were ties


def test_heads_without_a_value_in_one_measure_are_left_out_of_its_pairs():
    values = drawn(20, 2)
    values["m1"][:8] = torch.nan
    found = agreement(values, k=3)
    assert found.spearman[0, 1] == pytest.approx(
        stats.spearmanr(values["m0"][8:].numpy(), values["m1"][8:].numpy()).statistic
    )
    assert found.chance[0, 1] == 3 / 12 and found.chance[0, 0] == 3 / 20


def test_overlap_is_the_share_of_the_best_heads_in_common():
    a = torch.tensor([9.0, 8, 7, 1, 2, 3, 0, 0])
    b = torch.tensor([1.0, 8, 9, 7, 2, 3, 0, 0])
    found = agreement({"a": a, "b": b}, k=3)
    assert found.overlap[0, 1] == 2 / 3 and found.overlap[0, 0] == 1
    assert agreement({"a": a, "b": b}, k=100).k == 4  # more than half would overlap by necessity


def test_random_rankings_overlap_by_chance():
    values = drawn(40, 60)
    independent = {name: row - values["m0"] / 3 for name, row in values.items() if name != "m0"}
    found = agreement(independent, k=10)
    lower = found.overlap[torch.ones_like(found.overlap).tril(-1).bool()]
    assert lower.mean().item() == pytest.approx(0.25, abs=0.01)
    assert found.chance.unique().tolist() == [0.25]


def test_pearson_and_its_interval_are_scipys():
    a, b = drawn(25, 2).values()
    expected = stats.pearsonr(a.numpy(), b.numpy())
    interval = expected.confidence_interval(0.95)
    got = pearson(a, b)
    assert (
        got[:3] == pytest.approx((expected.statistic, interval.low, interval.high))
        and got.heads == 25
    )


def test_what_is_constant_or_too_few_has_no_correlation():
    assert math.isnan(spearman(torch.ones(5), torch.arange(5.0)))
    assert math.isnan(pearson(torch.ones(5), torch.arange(5.0)).r)
    assert math.isnan(pearson(torch.tensor([1.0]), torch.tensor([2.0])).r)
    same = pearson(torch.arange(9.0), torch.arange(9.0))
    assert same.r == pytest.approx(1) and not same.low < 0.999
    few = pearson(torch.tensor([1.0, 2, 4]), torch.tensor([1.0, 3, 2]))
    assert math.isnan(few.low) and not math.isnan(few.r)


def test_the_interval_of_a_rank_correlation_covers_the_true_one():
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for _ in range(400):
        x = torch.randn(40, generator=generator, dtype=torch.float64)
        y = 0.6 * x + 0.8 * torch.randn(40, generator=generator, dtype=torch.float64)
        low, high = spearman_interval(spearman(x, y), 40)
        inside += (
            low < 6 / math.pi * math.asin(0.6 / 2) < high
        )  # the rank correlation of a normal law with r = 0.6
    assert inside / 400 == pytest.approx(0.95, abs=3 * (0.05 * 0.95 / 400) ** 0.5)
    assert all(math.isnan(end) for end in spearman_interval(0.5, 3))
    assert all(
        math.isnan(end) for end in spearman_interval(1.0, 4)
    )  # luck orders four heads alike with p = 1 / 12
    # tanh(arctanh .8 -+ 1.95996 sqrt((1 + .8^2 / 2) / 25)), by hand; without Bonett & Wright's
    # factor .605 and .904
    assert spearman_interval(0.8, 28) == pytest.approx((0.570489, 0.913617), abs=1e-6)
