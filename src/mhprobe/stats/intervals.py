"""95 % intervals: from an estimate and its standard error, or from means over resampled images.

By Student's law; on the logit scale for a share and the logarithmic one for a size, so that low and
high stay in range. The bootstrap is the percentile interval (Efron & Tibshirani, 1993, ch. 13), of
the same resamples for all rows.

Shapes: K rows, N images, R resamples.
"""

import math

import torch
from torch import Tensor

from mhprobe.stats.significance import standard_error, t_quantile, two_sided

REAL = (-math.inf, math.inf)
SHARE = (0.0, 1.0)
SIZE = (0.0, math.inf)
_RESOLUTION = 1e-10  # of squares: a smaller spread is rounding
_CHUNK = 50  # resamples at a time: their counts are a (chunk, N) float64 matrix

Range = tuple[float, float]


def interval(
    value: Tensor, error: Tensor, freedom: int, within: Range = REAL
) -> tuple[Tensor, Tensor]:
    """Lower and upper end, of the shape of ``value``. NaN without a degree of freedom.

    error: standard error of ``value``, with so many degrees of ``freedom``. within: REAL, SHARE or
    SIZE.

    >>> low, high = interval(torch.tensor([0.5, 0.99]), torch.tensor([0.05, 0.01]), 1000, SHARE)
    >>> [round(end, 3) for end in low.tolist()], [round(end, 3) for end in high.tolist()]
    ([0.403, 0.932], [0.597, 0.999])
    """
    if freedom < 1:
        return (torch.full_like(value, torch.nan),) * 2
    half = t_quantile(torch.tensor(freedom)).item() * error
    if within == REAL:
        return value - half, value + half
    if within == SIZE:
        low = value * (-half / value).exp()
        high = value * (half / value).exp()
    else:
        steep = half / (value * (1 - value))
        low, high = ((value.logit() + sign * steep).sigmoid() for sign in (-1, 1))
    end = (value <= within[0]) | (
        value >= within[1]
    )  # by rounding even beyond it: no finite logit or logarithm
    low = torch.where(end, torch.minimum((value - half).clamp(*within), value), low)
    high = torch.where(end, torch.maximum((value + half).clamp(*within), value), high)
    return torch.where(half == 0, value, low), torch.where(half == 0, value, high)


def of_mean(
    total: Tensor, square: Tensor, count: Tensor, within: Range = REAL
) -> dict[str, Tensor]:
    """Columns value, standard_error, low and high of a mean, from sums of numbers and squares.

    within: as above.
    """
    value, error = total / count, standard_error(total, square, count)
    low, high = interval(value, error, int(count) - 1, within)
    return {"value": value, "standard_error": error, "low": low, "high": high}


def of_skewed_mean(
    total: Tensor, square: Tensor, cube: Tensor, count: Tensor, within: Range = REAL
) -> dict[str, Tensor]:
    """Columns value, standard_error, low and high of a mean of skewed numbers, from sums of powers.

    Student's interval of few skewed numbers lies too low: the mean of a draw without the rare large
    ones has a small error, too. Hall's cubic transformation of Student's t takes out the first
    order of skewness (Hall, 1992, JRSS B 54:221), so the upper end reaches further than the lower.
    cube: sums of third powers. within: as above; an end outside of it is cut off.

    >>> x = torch.tensor([0.1, 0.2, 0.3, 0.2, 5.0], dtype=torch.float64)
    >>> got = of_skewed_mean(x.sum()[None], x.square().sum()[None], x.pow(3).sum()[None], torch.tensor(5), SIZE)
    >>> [round(got[end].item(), 2) for end in ("low", "value", "high")]
    [0.0, 1.16, 9.67]
    """
    value, error = total / count, standard_error(total, square, count)
    freedom = int(count) - 1
    if freedom < 1:
        nothing = torch.full_like(value, torch.nan)
        return {"value": value, "standard_error": error, "low": nothing, "high": nothing.clone()}
    spread = (square / count - value.square()).clamp(min=0)
    third = cube / count - 3 * value * square / count + 2 * value**3
    skewness = third / spread.clamp(min=torch.finfo(spread.dtype).tiny) ** 1.5
    lean = torch.where(spread > _RESOLUTION * square / count, skewness, 0.0) / math.sqrt(int(count))
    ends = (_t_of(lean, sign * t_quantile(torch.tensor(freedom)).item()) for sign in (1, -1))
    low, high = ((value - error * t).clamp(*within) for t in ends)
    return {"value": value, "standard_error": error, "low": low, "high": high}


def _t_of(lean: Tensor, quantile: float) -> Tensor:
    """Student's t whose transformation is ``quantile``: t + lean t^2 / 3 + lean^2 t^3 / 27 + lean / 6.

    lean: skewness over the root of the count.
    """
    steep = torch.where(lean.abs() > 1e-6, lean, 1e-6) / 3
    inside = 1 + 3 * steep * (quantile - lean / 6)
    return (inside.sign() * inside.abs() ** (1 / 3) - 1) / steep


def p_of_interval(gap: Tensor, half: Tensor, freedom: int) -> Tensor:
    """Two-sided p that a gap is 0, from half the width of its 95 % interval, as ``two_sided``; NaN without freedom.

    >>> p_of_interval(torch.tensor([1.96, 3.92]), torch.tensor([1.96, 1.96]), 10**6).round(decimals=4).tolist()
    [0.05, 0.0001]
    """
    return two_sided(gap, half / t_quantile(torch.tensor(freedom)).item(), torch.tensor(freedom))


def bootstrap(values_KN: Tensor, resamples: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lower and upper end, (K,) each, of the 95 % interval of the mean over images; NaN with a single one."""
    return percentiles(resampled_means(values_KN, resamples, seed))


def resampled_means(values_KN: Tensor, resamples: int = 1000, seed: int = 0) -> Tensor:
    """(R, K) the means over the images of each resample; NaN of a single image, which does not vary."""
    images = values_KN.shape[1]
    values_KN = values_KN if images > 1 else values_KN * torch.nan
    generator = torch.Generator().manual_seed(seed)
    one = torch.ones(1, 1, dtype=torch.float64)
    means = []
    for chunk in torch.arange(resamples).split(_CHUNK):
        positions = torch.randint(images, (len(chunk), images), generator=generator)
        count = torch.zeros(positions.shape, dtype=torch.float64).scatter_add_(
            1, positions, one.expand(positions.shape)
        )
        means.append(count @ values_KN.double().T / images)
    return torch.cat(means)


def percentiles(resampled: Tensor) -> tuple[Tensor, Tensor]:
    """(R, ...) numbers of resamples -> lower and upper end, (...) each, of the 95 % percentile interval."""
    low, high = torch.quantile(resampled, resampled.new_tensor([0.025, 0.975]), dim=0)
    return low, high
