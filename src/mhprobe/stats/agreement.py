"""Do two ways to score heads agree? Correlations over heads, and how many of the best heads they have in common.

Shapes: A heads, M measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.stats.significance import Z95


class Pearson(NamedTuple):
    """r over ``heads`` heads, with Fisher's 95 % interval; NaN where it is not defined."""

    r: float
    low: float
    high: float
    heads: int


class Agreement(NamedTuple):
    """spearman: (M, M) rank correlations; overlap: (M, M) share of the k heads with the largest value in common.

    chance: (M, M) the overlap that two random rankings are expected to have.
    """

    names: tuple[str, ...]
    k: int
    spearman: Tensor
    overlap: Tensor
    chance: Tensor


def agreement(values: Mapping[str, Tensor], k: int) -> Agreement:
    """Every measure's (A,) values against every other's, over the heads for which both have one (are not NaN).

    k: how many heads of the top are compared, at most half of them: a larger share overlaps by necessity.
    """
    names = tuple(values)
    k = max(1, min(k, min((len(v) for v in values.values()), default=2) // 2))
    spearman, overlap, chance = torch.full((3, len(names), len(names)), torch.nan, dtype=torch.float64)
    for i, a in enumerate(values.values()):
        for j, b in enumerate(values.values()):
            x, y = _both(a, b)
            spearman[i, j] = correlation(ranks(x), ranks(y))
            if len(x) >= k:
                overlap[i, j] = len(set(_top(x, k)) & set(_top(y, k))) / k
                chance[i, j] = k / len(x)
    return Agreement(names, k, spearman, overlap, chance)


def pearson(a: Tensor, b: Tensor) -> Pearson:
    """Pearson's r of two (A,) values over heads, with its interval by Fisher's z (heads taken as independent)."""
    x, y = _both(a, b)
    r = correlation(x, y)
    if len(x) < 4 or not abs(r) < 1:
        return Pearson(r, math.nan, math.nan, len(x))
    z, half = math.atanh(r), Z95 / math.sqrt(len(x) - 3)
    return Pearson(r, math.tanh(z - half), math.tanh(z + half), len(x))


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's r; NaN for fewer than two values or where one side is constant."""
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return math.nan
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    return float((x @ y / (x.norm() * y.norm())).clamp(-1, 1))


def ranks(x: Tensor) -> Tensor:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, count = torch.unique(x, return_inverse=True, return_counts=True)
    last = count.cumsum(0)
    return (last - (count - 1) / 2)[place].double()


def _both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    known = a.isfinite() & b.isfinite()
    return a[known], b[known]


def _top(x: Tensor, k: int) -> list[int]:
    """The k heads with the largest value; of equal ones the first."""
    return x.argsort(descending=True, stable=True)[:k].tolist()
