"""Percentile interval of a mean over resampled images (Efron & Tibshirani, 1993, ch. 13).

All rows see the same resamples, so differences of paired rows are resampled as pairs.

Shapes: K rows, N images, R resamples.
"""

import torch
from torch import Tensor

_CHUNK = 50  # resamples at a time: their counts are a (chunk, N) float64 matrix


def bootstrap(values_KN: Tensor, resamples: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lower and upper end, (K,) each, of the 95 % interval of the mean over images."""
    return interval(resampled_means(values_KN, resamples, seed))


def resampled_means(values_KN: Tensor, resamples: int = 1000, seed: int = 0) -> Tensor:
    """(R, K) the means over the images of each resample."""
    images = values_KN.shape[1]
    generator = torch.Generator().manual_seed(seed)
    one = torch.ones(1, 1, dtype=torch.float64)
    means = []
    for chunk in torch.arange(resamples).split(_CHUNK):
        drawn = torch.randint(images, (len(chunk), images), generator=generator)
        count = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(1, drawn, one.expand(drawn.shape))
        means.append(count @ values_KN.double().T / images)
    return torch.cat(means)


def interval(found: Tensor) -> tuple[Tensor, Tensor]:
    """(R, ...) what each resample gives -> lower and upper end, (...) each, of the 95 % percentile interval."""
    low, high = torch.quantile(found, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    return low, high
