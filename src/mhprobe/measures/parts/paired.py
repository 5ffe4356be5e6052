"""Loss and accuracy with heads off against those with all heads, image by image: paired tests and a streamed bootstrap.

Every image draws for itself how often each resample has it. The numbers that an image has in resamples of N images are
nearly independent and follow Poisson's law with mean 1 (the online bootstrap: Oza & Russell, 2001, AISTATS; Chamandy,
Muralidharan, Najmi & Naidu, 2012, Google technical report). Here each comes from a hash of the image and of the
resample's number. So the sums over resamples depend on no order, batch or rank, all heads see the same resamples, and
what is paired stays paired.

Shapes: B images of a batch, V valid ones, A masks (one per head), R resamples.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.heads import Ablation, HeadBatch
from mhprobe.measures.base import Measure, counts, sums
from mhprobe.measures.parts.hashing import mixed, numbers_in
from mhprobe.measures.parts.losses import outcomes_of
from mhprobe.stats.significance import paired_difference, standard_error

RESAMPLES = 1000
_GOLDEN = 0x9E3779B97F4A7C1  # an odd number: resamples lie far apart before they are mixed
_LAW = torch.tensor([math.exp(-1) / math.factorial(k) for k in range(18)], dtype=torch.float64).cumsum(0)


class Paired(Measure):
    """Base of measures of what heads that are off change. ablation: a mask per head. sign: -1 where a fall counts."""

    ablation: Ablation
    sign: ClassVar[int] = 1

    both: Tensor = counts("A")  # images right with all heads and under the mask
    lost: Tensor = counts("A")  # right with all heads only
    won: Tensor = counts("A")  # right under the mask only
    rise: Tensor = sums("A")  # of sign * (loss under the mask - loss with all heads)
    square: Tensor = sums("A")  # of its squares
    resampled: Tensor = sums(RESAMPLES, "A")
    drawn: Tensor = counts(RESAMPLES)  # images

    def compare(self, batch: HeadBatch) -> tuple[Tensor, Tensor]:
        """Add a batch to the sums; return (V,) right with all heads, and (A, V) right under each mask."""
        right, loss = outcomes_of(batch, batch.logits)
        right_AV, loss_AV = outcomes_of(batch, batch.ablated[self.ablation])
        self.both += (right & right_AV).sum(1)
        self.lost += (right & ~right_AV).sum(1)
        self.won += (~right & right_AV).sum(1)
        rise_AV = self.sign * (loss_AV - loss)
        self.rise += rise_AV.sum(1)
        self.square += rise_AV.square().sum(1)
        times_RV = batch.derive(_times)
        self.resampled += times_RV.double() @ rise_AV.double().T
        self.drawn += times_RV.sum(1)
        return right, right_AV

    def losses(self) -> dict[str, Tensor]:
        """Columns value, standard_error, low and high: 95 % percentile interval, NaN with a single image."""
        mean_RA = self.resampled[self.drawn > 0] / self.drawn[self.drawn > 0, None]
        ends = torch.quantile(mean_RA, mean_RA.new_tensor([0.025, 0.975]), dim=0)
        low, high = ends if self.images > 1 else ends * torch.nan
        error = standard_error(self.rise, self.square, self.images)
        return {"value": self.rise / self.images, "standard_error": error, "low": low, "high": high}

    def drops(self) -> dict[str, Tensor]:
        """Columns drop, drop_low and drop_high: share right with all heads - share right under the mask."""
        low, high = paired_difference(self.both, self.lost, self.won, self.images)
        return {"drop": (self.lost - self.won).double() / self.images, "drop_low": low, "drop_high": high}

    def whole(self) -> Tensor:
        """() accuracy with all heads."""
        return (self.both + self.lost)[0].double() / self.images


def _times(batch: HeadBatch) -> Tensor:
    """(R, V) int64 how often each resample has each image."""
    number_V = numbers_in(batch)
    resample_R = torch.arange(1, RESAMPLES + 1, device=number_V.device)
    even_RV = (mixed(number_V + (resample_R * _GOLDEN)[:, None]) & 2**53 - 1).double() / 2**53
    return torch.searchsorted(_LAW.to(number_V.device), even_RV, right=True)
