"""Do two ways to score heads agree, and does one tell two groups apart? Correlations, best heads, area under ROC.

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
    """Agreement of M measures on the same heads.

    spearman: (M, M) rank correlations; overlap: (M, M) share of the k heads with the largest value in common.
    chance: (M, M) the overlap that two random rankings are expected to have. low, high: (M, M) 95 % interval of
    spearman.
    """

    names: tuple[str, ...]
    k: int
    spearman: Tensor
    overlap: Tensor
    chance: Tensor
    low: Tensor
    high: Tensor


def agreement(values: Mapping[str, Tensor], k: int) -> Agreement:
    """Every measure's (A,) values against every other's, over the heads for which both have one (are not NaN).

    k: how many heads of the top are compared, at most half of them: a larger share overlaps by necessity.
    """
    names = tuple(values)
    k = max(1, min(k, min((len(v) for v in values.values()), default=2) // 2))
    rho, overlap, chance, low, high = torch.full((5, len(names), len(names)), torch.nan, dtype=torch.float64)
    for i, a in enumerate(values.values()):
        for j, b in enumerate(values.values()):
            x, y = _both(a, b)
            rho[i, j] = spearman(x, y)
            low[i, j], high[i, j] = spearman_interval(float(rho[i, j]), len(x))
            if len(x) >= k:
                overlap[i, j] = int((lowest(-x, k) & lowest(-y, k)).sum()) / k
                chance[i, j] = k / len(x)
    return Agreement(names, k, rho, overlap, chance, low, high)


def pearson(a: Tensor, b: Tensor) -> Pearson:
    """Pearson's r of two (A,) values over heads, with its interval by Fisher's z (heads taken as independent)."""
    from scipy.stats import pearsonr  # slow to import

    x, y = _both(a, b)
    if not _vary(x, y):
        return Pearson(math.nan, math.nan, math.nan, len(x))
    found = pearsonr(x.double().numpy(), y.double().numpy())
    # three heads have no interval, and a perfect fit one without a width
    low, high = found.confidence_interval() if len(x) > 3 and abs(found.statistic) < 1 else (math.nan, math.nan)
    return Pearson(float(found.statistic), float(low), float(high), len(x))


def spearman(x: Tensor, y: Tensor) -> float:
    """Pearson's r of the ranks, ties sharing theirs; NaN for fewer than two values or where one side is constant."""
    from scipy.stats import spearmanr

    return float(spearmanr(x.numpy(), y.numpy()).statistic) if _vary(x, y) else math.nan


def spearman_interval(rho: float, heads: int) -> tuple[float, float]:
    """95 % interval of a rank correlation over heads, taken as independent: Fisher's z with Bonett & Wright's error.

    Bonett & Wright, 2000, Psychometrika 65:23. NaN for fewer than four heads; a perfect agreement has no width.
    """
    if math.isnan(rho) or heads < 4:
        return math.nan, math.nan
    if abs(rho) > 1 - 1e-12:
        return rho, rho
    half = Z95 * math.sqrt((1 + rho**2 / 2) / (heads - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


def _vary(x: Tensor, y: Tensor) -> bool:
    return len(x) > 1 and bool(x.min() < x.max()) and bool(y.min() < y.max())


def _both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    known = a.isfinite() & b.isfinite()
    return a[known], b[known]


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The chance that a number of the first group is larger than one of the second; NaN where a group is empty.

    The area under the ROC curve (Hanley & McNeil, 1982, Radiology 143:29), in [0, 1]. Half of it for ties, so that a
    number that is the same for all gives 0.5.

    inside: (P,). outside: (N,). NaN numbers are left out of both.

    >>> import torch
    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))  # of 4 pairs 3 larger, 1 equal
    0.875
    """
    inside, outside = (each[~each.isnan()].double() for each in (inside, outside))
    if not len(inside) or not len(outside):
        return float("nan")
    above = inside[:, None] - outside[None]
    return float(((above > 0).double() + (above == 0).double() / 2).mean())


def auroc_error(area: float, first: int, second: int, least: float = 0.0) -> float:
    """Standard error of ``auroc`` of so many numbers (Hanley & McNeil). least: pairs' variance below which none is."""
    of_first, of_second = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + ((first - 1) * of_first + (second - 1) * of_second)
    return math.sqrt(max(least, variance) / (first * second))


def lowest(scores_A: Tensor, count: int) -> Tensor:
    """(A,) bool, True for the ``count`` lowest scores; of equal ones the first, so that machines agree.

    For the highest give ``-scores_A``. NaN is above everything.
    """
    mask = torch.zeros_like(scores_A, dtype=torch.bool)
    mask[scores_A.argsort(stable=True)[:count]] = True
    return mask
