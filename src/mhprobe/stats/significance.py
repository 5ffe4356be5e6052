"""Tests of differences: two predictions on the same images, and many heads at once.

Exact McNemar, 1947: the binomial tail, not chi-squared. Holm, 1979. Benjamini & Hochberg, 1995,
JRSS B 57:289. Interval
of a paired difference: Newcombe, 1998, Statistics in Medicine 17:2635, method 10; in [-1, 1], never
of width 0.

Shapes: A tests, all arguments broadcast; N images.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, overload

import torch
from torch import Tensor

Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution
TINY = torch.finfo(
    torch.float64
).tiny  # the least p: a smaller one would be rounded to 0, and no p is 0
LEVEL = 0.05  # of all tests that were corrected together
SHARP = 1e7  # standard errors from 0: above, the values differ by the rounding of their sums alone


@overload
def significant(p: Tensor) -> Tensor: ...


@overload
def significant(p: float | str | None) -> bool: ...


def significant(p: Tensor | float | str | None) -> Tensor | bool:
    """True where p, corrected over all that was tested beside it, is below ``LEVEL``: the one rule.

    p: of any shape, or a cell of a table. NaN, None and an empty cell are no test: False.
    """
    if isinstance(p, Tensor):
        return p < LEVEL
    return isinstance(p, int | float) and p < LEVEL


def lower(p_A: Tensor, change_A: Tensor) -> Tensor:
    """(A,) True where a number is significantly lower: ``significant``, and the change is below 0."""
    return significant(p_A) & (change_A < 0)


def mcnemar(lost_A: Tensor, won_A: Tensor) -> Tensor:
    """(A,) two-sided p that images are lost and won with equal chance. lost, won: counts of discordant images."""
    from scipy.stats import binom  # slow to import, and only paired tests need it

    fewer = torch.minimum(lost_A, won_A).cpu().numpy()
    discordant = (lost_A + won_A).cpu().numpy()
    return torch.from_numpy(2 * binom.cdf(fewer, discordant, 0.5)).clamp(TINY, 1).to(lost_A.device)


def two_sided(mean_A: Tensor, error_A: Tensor, freedom: Tensor | None = None) -> Tensor:
    """(A,) two-sided p of a mean against 0, given its standard error. freedom: None for normal.

    1 where both are 0. Where all values are alike, and the error 0 up to rounding: the p of their
    signs, .5^freedom.
    """
    z_A = torch.where((mean_A == 0) & (error_A == 0), 0.0, mean_A.double().abs() / error_A)
    if freedom is None:
        tails_A: Tensor = torch.special.erfc(z_A / 2**0.5)
        return tails_A.clamp(min=TINY)
    from scipy.special import stdtr

    p_A = torch.from_numpy(2 * stdtr(freedom.double().cpu().numpy(), -z_A.cpu().numpy())).to(
        z_A.device
    )
    return torch.where((z_A > SHARP) & (freedom > 0), 0.5 ** freedom.double(), p_A).clamp(min=TINY)


def t_quantile(freedom: Tensor) -> Tensor:
    """97.5 % quantile of Student's law; NaN without a degree of freedom."""
    from scipy.special import stdtrit

    return torch.as_tensor(stdtrit(freedom.double().cpu().numpy(), 0.975)).to(freedom.device)


def t_interval(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and Student's 95 % interval of the mean over (R, K) independent repeats, each (K,); NaN ends of one."""
    repeats = len(values)
    mean = values.mean(0)
    half = (
        t_quantile(torch.tensor(repeats - 1))
        * values.std(0, correction=min(1, repeats - 1))
        / math.sqrt(repeats)
    )
    return mean, mean - half, mean + half


def holm(p_A: Tensor) -> Tensor:
    """(A,) p adjusted so that rejecting below alpha errs anywhere with probability at most alpha.

    NaN is no test.
    """
    order = p_A.argsort()[: int((~p_A.isnan()).sum())]  # NaN comes last
    factor = torch.arange(len(order), 0, -1, device=p_A.device)
    adjusted = (p_A[order] * factor).cummax(0).values.clamp(max=1)
    return torch.full_like(p_A, torch.nan).index_put((order,), adjusted)


def benjamini_hochberg(p_A: Tensor) -> Tensor:
    """(A,) p adjusted so that of those below alpha a share of at most alpha is expected to be false. NaN is no test."""
    order = p_A.argsort(descending=True)[int(p_A.isnan().sum()) :]  # NaN comes first
    rank = torch.arange(len(order), 0, -1, device=p_A.device)
    adjusted = (p_A[order] * len(order) / rank).cummin(0).values.clamp(max=1)
    return torch.full_like(p_A, torch.nan).index_put((order,), adjusted)


def beyond(value_A: Tensor, draws_AN: Tensor) -> Tensor:
    """(A,) one-sided p that each value is one more of its own N draws; NaN with fewer than three draws.

    All rows are assumed to have one law up to place and scale: each draw's standardised distances
    from the others of its row are pooled. So p is at least 1 / (A N + 1).
    """
    count = draws_AN.shape[1]
    if count < 3 or not len(value_A):
        return torch.full_like(value_A, torch.nan)
    others = [
        _standing(draws_AN[:, n], draws_AN[:, torch.arange(count) != n]) for n in range(count)
    ]
    pool = torch.stack(others).flatten().sort().values
    at_least_A = len(pool) - torch.searchsorted(pool, _standing(value_A, draws_AN).contiguous())
    return (1 + at_least_A).double() / (1 + len(pool))


def _standing(value_A: Tensor, draws_AN: Tensor) -> Tensor:
    """(A,) distance above the mean of the draws, in the standard deviation of a further draw from it."""
    spread_A: Tensor = draws_AN.std(1) * (1 + 1 / draws_AN.shape[1]) ** 0.5
    return (value_A - draws_AN.mean(1)) / spread_A.clamp(min=torch.finfo(draws_AN.dtype).tiny)


def wilson(count_A: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Wilson's 95 % interval of the share count / images (Wilson, 1927)."""
    total = images.double()
    share = count_A.double() / total
    shrink = 1 + Z95**2 / total
    centre = (share + Z95**2 / (2 * total)) / shrink
    half = Z95 / shrink * (share * (1 - share) / total + Z95**2 / (4 * total**2)).sqrt()
    return (centre - half).clamp(min=0), (centre + half).clamp(max=1)


def paired_difference(
    both_A: Tensor, lost_A: Tensor, won_A: Tensor, images: Tensor
) -> tuple[Tensor, Tensor]:
    """95 % interval of (share right before) - (share right after), from counts: right both times, lost, won, all."""
    both = both_A.double()
    lost = lost_A.double()
    won = won_A.double()
    total = images.double()
    neither = total - both - lost - won
    before, after = (both + lost) / total, (both + won) / total
    before_low, before_high = wilson(both + lost, total)
    after_low, after_high = wilson(both + won, total)
    agreement = both * neither - lost * won
    agreement = torch.where(
        agreement > 0, (agreement - total / 2).clamp(min=0), agreement
    )  # his continuity correction
    margins = ((both + lost) * (won + neither) * (both + won) * (lost + neither)).sqrt()
    phi = torch.where(margins > 0, agreement / margins.clamp(min=1), 0.0)
    down, up = before - before_low, after_high - after
    low = before - after - (down**2 - 2 * phi * down * up + up**2).clamp(min=0).sqrt()
    up, down = before_high - before, after - after_low
    high = before - after + (up**2 - 2 * phi * up * down + down**2).clamp(min=0).sqrt()
    return low.clamp(min=-1), high.clamp(max=1)


class PairedTest(NamedTuple):
    """Two networks on the same images."""

    difference: float  # share right after - share right before
    low: float  # its 95 % interval (Newcombe)
    high: float
    lost: int  # images right before only
    won: int  # after only
    p: float  # exact McNemar


def paired(before_N: Tensor, after_N: Tensor) -> PairedTest:
    """Compare accuracy ``before`` and ``after`` on the same N images, each (N,) bool, True where an image is right."""
    both, lost, won = (
        n.sum()[None] for n in (before_N & after_N, before_N & ~after_N, ~before_N & after_N)
    )
    low, high = paired_difference(
        both, lost, won, torch.tensor([len(before_N)], device=both.device)
    )  # of the loss
    gained = int(won) - int(lost)
    return PairedTest(
        gained / len(before_N),
        -float(high),
        -float(low),
        int(lost),
        int(won),
        float(mcnemar(lost, won)),
    )


class Crossed(NamedTuple):
    """A mean difference of repeats on the same images, its 95 % interval, and p against 0."""

    difference: float
    low: float
    high: float
    p: float
    error: float  # standard error, and the degrees of freedom of Student's law
    freedom: float


def crossed(difference_RN: Tensor) -> Crossed:
    """Test a mean difference, of (R, N) values per repeat (a seed) and image, for new images and new repeats at once.

    The variances of the means over images and over repeats are added, which is conservative;
    Student's law with Satterthwaite's degrees of freedom (1946). One repeat says nothing of new
    ones.
    """
    repeats, images = difference_RN.shape
    difference_RN = difference_RN.double()
    parts = [(float(difference_RN.mean(0).var()) / images, images - 1)]
    if repeats > 1:
        parts.append((float(difference_RN.mean(1).var()) / repeats, repeats - 1))
    error, freedom = satterthwaite(parts)
    # scipy takes no tensor without a dimension
    mean = difference_RN.mean()[None]
    degrees = torch.tensor([freedom])
    half = float(t_quantile(degrees)) * error
    p = two_sided(mean, torch.full_like(mean, error), degrees)
    return Crossed(float(mean), float(mean) - half, float(mean) + half, float(p), error, freedom)


def satterthwaite(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of (variance, degrees of freedom) (1946)."""
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts if freedom)
    return math.sqrt(variance), variance**2 / spread if spread > 0 else max(
        freedom for _, freedom in parts
    )


def standard_error(total: Tensor, square: Tensor, count: Tensor) -> Tensor:
    """Standard error of the mean total / count, from the sums of values and of squares; NaN with a single value."""
    variance = (square - total.square() / count).clamp(min=0) / (count - 1)
    return (variance / count).sqrt()
