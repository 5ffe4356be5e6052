"""Agreement of two scores of heads: correlations and shared best heads.

Separation of two groups: area under ROC.

Shapes: A heads, M measures.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.stats.significance import Z95


class Pearson(NamedTuple):
    """Correlation r over ``heads`` heads, with Fisher's 95 % interval; NaN where it is not defined."""

    r: float
    low: float
    high: float
    heads: int


class Agreement(NamedTuple):
    """Agreement of M measures on the same heads, (M, M) each."""

    names: tuple[str, ...]
    k: int
    spearman: Tensor  # rank correlations
    overlap: Tensor  # shared part of the k heads of largest value
    chance: Tensor  # expected overlap of two random rankings
    low: Tensor  # 95 % interval of spearman
    high: Tensor


def agreement(values: Mapping[str, Tensor], k: int) -> Agreement:
    """Every measure's (A,) values against every other's, over heads with both.

    k: at most half of the heads.
    """
    names = tuple(values)
    k = max(1, min(k, min((len(v) for v in values.values()), default=2) // 2))
    rho, overlap, chance, low, high = torch.full(
        (5, len(names), len(names)), torch.nan, dtype=torch.float64
    )
    for i, a in enumerate(values.values()):
        for j, b in enumerate(values.values()):
            x, y = with_both(a, b)
            rho[i, j] = spearman(x, y)
            low[i, j], high[i, j] = spearman_interval(float(rho[i, j]), len(x))
            if len(x) >= k:
                overlap[i, j] = int((lowest(-x, k) & lowest(-y, k)).sum()) / k
                chance[i, j] = k / len(x)
    return Agreement(names, k, rho, overlap, chance, low, high)


def pearson(a: Tensor, b: Tensor) -> Pearson:
    """Pearson's r of two (A,) values over heads, with its interval by Fisher's z (heads taken as independent)."""
    from scipy.stats import pearsonr  # slow to import

    x, y = with_both(a, b)
    if not _vary(x, y):
        return Pearson(math.nan, math.nan, math.nan, len(x))
    result = pearsonr(x.double().numpy(), y.double().numpy())
    # no interval of three heads, nor of a perfect fit
    low, high = (
        result.confidence_interval()
        if len(x) > 3 and abs(result.statistic) < 1
        else (math.nan, math.nan)
    )
    return Pearson(float(result.statistic), float(low), float(high), len(x))


def spearman(x: Tensor, y: Tensor) -> float:
    """Pearson's r of the ranks, mean ranks for ties; NaN for fewer than two values and for a constant side."""
    from scipy.stats import spearmanr

    return float(spearmanr(x.numpy(), y.numpy()).statistic) if _vary(x, y) else math.nan


def spearman_interval(rho: float, heads: int) -> tuple[float, float]:
    """95 % interval of a rank correlation (Bonett & Wright, 2000, Psychometrika 65:23); NaN for < 4 heads, or +-1."""
    if math.isnan(rho) or heads < 4 or abs(rho) > 1 - 1e-12:
        return math.nan, math.nan
    half = Z95 * math.sqrt((1 + rho**2 / 2) / (heads - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


def _vary(x: Tensor, y: Tensor) -> bool:
    return len(x) > 1 and bool(x.min() < x.max()) and bool(y.min() < y.max())


def with_both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) values of the heads that have both."""
    finite = a.isfinite() & b.isfinite()
    return a[finite], b[finite]


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Chance that one of (P,) numbers ``inside`` is larger than one of (N,) ``outside``, ties by half, in [0, 1].

    The area under the ROC curve (Hanley & McNeil, 1982, Radiology 143:29). NaN are left out; NaN
    for an empty group.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))  # of 4 pairs 3 larger, 1 equal
    0.875
    """
    inside, outside = (group[~group.isnan()].double() for group in (inside, outside))
    above = inside[:, None] - outside
    return float(
        ((above > 0).double() + (above == 0).double() / 2).mean()
    )  # the mean of nothing is NaN


def auroc_error(area: float, first: int, second: int, least: float = 0.0) -> float:
    """Standard error of ``auroc`` for groups of these sizes (Hanley & McNeil).

    least: lower bound of the variance.
    """
    of_first, of_second = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + ((first - 1) * of_first + (second - 1) * of_second)
    return math.sqrt(max(least, variance) / (first * second))


def lowest(scores_A: Tensor, count: int) -> Tensor:
    """(A,) bool, True for the ``count`` lowest scores; of equal ones the first.

    NaN is above everything.
    """
    mask = torch.zeros_like(scores_A, dtype=torch.bool)
    mask[scores_A.argsort(stable=True)[:count]] = True
    return mask
