"""95 % intervals over images, slowly: image by image, fold by fold, derivatives by small steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from scipy.optimize import brentq

SCALES: dict[tuple[float, float], tuple[Callable, Callable]] = {
    (-np.inf, np.inf): (lambda x: x, lambda y: y),
    (0.0, np.inf): (np.log, np.exp),
    (0.0, 1.0): (lambda x: np.log(x / (1 - x)), lambda y: 1 / (1 + np.exp(-y))),
}


def around(
    value: float, error: float, freedom: int, within: tuple[float, float]
) -> tuple[float, float]:
    """Student's interval on the scale of ``within``, and back."""
    if error == 0:
        return value, value
    there, back = SCALES[within]
    step = 1e-6 * min(abs(end - value) for end in (*within, value + 1))
    slope = (there(value + step) - there(value - step)) / (2 * step)
    half = stats.t.ppf(0.975, freedom) * error * slope
    return float(back(there(value) - half)), float(back(there(value) + half))


def of_ratio(
    numerators: Sequence[float], denominators: Sequence[float], within: tuple[float, float]
):
    """Of (sum of numerators) / (sum of denominators), an entry per image: the spread of what the ratio leaves over."""
    x, w = np.array(numerators), np.array(denominators)
    ratio = x.sum() / w.sum()
    left = [a - ratio * b for a, b in zip(x, w, strict=True)]
    error = np.std(left, ddof=1) / np.sqrt(len(x)) / w.mean()
    return around(ratio, error, len(x) - 1, within)


def of_mean(values: Sequence[float], within: tuple[float, float]) -> tuple[float, float]:
    """Of the mean of one value per image."""
    return of_ratio(values, np.ones(len(values)), within)


def of_skewed(values: Sequence[float], within: tuple[float, float]) -> tuple[float, float]:
    """Of the mean of skewed values: the means whose transformed t (Hall, 1992, JRSS B 54:221) is at its quantiles."""
    x = np.array(values)
    n, error = len(x), np.std(x, ddof=1) / np.sqrt(len(x))
    lean = stats.skew(x) / np.sqrt(n)

    def transformed(t: float) -> float:
        return t + lean * t**2 / 3 + lean**2 * t**3 / 27 + lean / 6

    quantile = stats.t.ppf(0.975, n - 1)
    ends = (
        x.mean() - error * brentq(lambda t, q=q: transformed(t) - q, -1e6, 1e6)
        for q in (quantile, -quantile)
    )
    low, high = (float(np.clip(end, *within)) for end in ends)
    return low, high


def left_out(
    statistic: Callable[[np.ndarray], float], fold_of: Sequence[int], within: tuple[float, float]
):
    """Delete-a-group jackknife of ``statistic(numbers of the images)``: Busing et al., 1999, equation by equation."""
    fold_of = np.array(fold_of)
    images, whole = np.arange(len(fold_of)), statistic(np.arange(len(fold_of)))
    folds = [fold for fold in set(fold_of.tolist()) if (fold_of == fold).any()]
    n, g = len(fold_of), len(folds)
    size = [int((fold_of == fold).sum()) for fold in folds]
    without = [statistic(images[fold_of != fold]) for fold in folds]
    estimate = g * whole - sum((1 - m / n) * v for m, v in zip(size, without, strict=True))
    variance = 0.0
    for m, v in zip(size, without, strict=True):
        h = n / m
        pseudo = h * whole - (h - 1) * v
        variance += (pseudo - estimate) ** 2 / (h - 1)
    return around(whole, np.sqrt(variance / g), g - 1, within)
