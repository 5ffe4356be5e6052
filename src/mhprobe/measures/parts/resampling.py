"""The bootstrap of a mean over images, streamed: every image draws for itself how often each resample has it.

The numbers that an image has in resamples of N images are nearly independent and follow Poisson's law with mean 1 (the
online bootstrap: Oza & Russell, 2001, AISTATS; Chamandy, Muralidharan, Najmi & Naidu, 2012, Google technical report).
Here each comes from a hash of the image and of the resample's number. So the sums over resamples depend on no order,
batch or rank, all rows of a measure see the same resamples, and what is paired stays paired.

Shapes: V valid images, A rows (heads), R resamples.
"""

import math

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.hashing import mixed, numbers_in

RESAMPLES = 1000
_GOLDEN = 0x9E3779B97F4A7C1  # an odd number: resamples lie far apart before they are mixed
_LAW = torch.tensor([math.exp(-1) / math.factorial(k) for k in range(18)], dtype=torch.float64).cumsum(0)


def declare_resamples(measure: Measure, rows: int) -> None:
    """The sums: ``resampled`` (R, A) of values and ``drawn`` (R,) of images."""
    measure.add_state("resampled", torch.zeros(RESAMPLES, rows, dtype=torch.float64))
    measure.add_state("drawn", torch.zeros(RESAMPLES, dtype=torch.long))


def add_resamples(measure: Measure, batch: HeadBatch, values_AV: Tensor) -> None:
    """Take in the values of a batch's valid images."""
    times_RV = batch.derive(_times)
    measure.resampled += times_RV.double() @ values_AV.double().T  # type: ignore[operator]
    measure.drawn += times_RV.sum(1)  # type: ignore[operator]


def resampled_interval(measure: Measure) -> tuple[Tensor, Tensor]:
    """Lower and upper end, (A,) each, of the 95 % percentile interval of the mean; NaN with a single image."""
    drawn_R: Tensor = measure.drawn  # type: ignore[assignment]
    total_RA: Tensor = measure.resampled  # type: ignore[assignment]
    mean_RA = total_RA[drawn_R > 0] / drawn_R[drawn_R > 0, None]
    if int(measure.images) < 2:
        return (mean_RA.new_full(mean_RA.shape[1:], torch.nan),) * 2
    low_A, high_A = torch.quantile(mean_RA, mean_RA.new_tensor([0.025, 0.975]), dim=0)
    return low_A, high_A


def _times(batch: HeadBatch) -> Tensor:
    """(R, V) int64 how often each resample has each image."""
    number_V = numbers_in(batch)
    resample_R = torch.arange(1, RESAMPLES + 1, device=number_V.device)
    even_RV = (mixed(number_V + (resample_R * _GOLDEN)[:, None]) & 2**53 - 1).double() / 2**53
    return torch.searchsorted(_LAW.to(number_V.device), even_RV, right=True)
