"""Loss of each image, by one function for all, its slope along each head's gate, sums per class, and paired tests.

The slopes are what importance and Fisher information are made of: dL/dxi_h = sum over tokens and
width of z * dL/dz. Losses with heads off are compared with those with all heads, image by image, by
a streamed bootstrap: each image draws for itself how often each resample has it, nearly independent
Poisson variables of mean 1 (the online bootstrap: Oza & Russell, 2001, AISTATS; Chamandy,
Muralidharan, Najmi & Naidu, 2012, Google technical report). Each comes from a hash of the image and
of the resample's number, so all heads see the same resamples, whatever the order, batch or rank.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import Ablation, FillName, HeadBatch, wide
from mhprobe.measures.base import Measure, counts, sums
from mhprobe.measures.parts.hashing import donor_of, mixed, numbers_in
from mhprobe.stats.intervals import percentiles
from mhprobe.stats.significance import paired_difference, standard_error

RESAMPLES = 1000
_GOLDEN = 0x9E3779B97F4A7C1  # an odd number: resamples lie far apart before they are mixed
_LAW = torch.tensor(
    [math.exp(-1) / math.factorial(k) for k in range(18)], dtype=torch.float64
).cumsum(0)


def outcomes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits and (B,) labels -> right (..., B) bool, and loss (..., B) float64, cross-entropy in nats."""
    exact = logits.double()  # differences between masks are small against the loss itself
    at_label = exact.gather(-1, labels.expand(exact.shape[:-1])[..., None]).squeeze(-1)
    # argmax would call NaN the largest; a loss that is NaN says so in the sums
    return logits.argmax(-1) == labels, exact.logsumexp(-1) - at_label


def labels_of(batch: HeadBatch, name: str) -> Tensor:
    """(V,) labels of the valid images. name: of the measure that asks, for its error."""
    return batch.need("labels", name)[batch.valid]


def outcomes_of(batch: HeadBatch, logits: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits of a batch -> right and loss, (..., V), of its valid images."""
    return outcomes(logits[..., batch.valid, :], labels_of(batch, name))


def gate_slopes(batch: HeadBatch, name: str) -> Tensor:
    """(B, A) float64, once per batch for all measures.

    name: of the measure that asks, for its error.
    """
    batch.need("grad", name)
    return batch.derive(_gate_slopes)


def _gate_slopes(batch: HeadBatch) -> Tensor:
    return torch.cat([t.sum(1) for t in token_slopes(batch, "gate slopes")], 1)


def token_slopes(batch: HeadBatch, name: str) -> Iterator[Tensor]:
    """Per site (B, T, H) float64: the slope along a gate on this token's head alone.

    One site at a time is kept.
    """
    # products of narrow types are exact in float32, their sums are not
    pairs = zip(batch.z, batch.need("grad", name), strict=True)
    return ((wide(z) * wide(g)).sum(-1, dtype=torch.float64) for z, g in pairs)


class PerClass(Measure):
    """Base of measures with sums (..., C).

    tables: columns that have a number per class, which ``axes`` names.

    Logits tell the number of classes: the sums grow at the first batch, or, on a rank without any,
    before ranks add up.
    """

    tables: ClassVar[tuple[str, ...]]

    class_images: Tensor = counts("C")

    def update(self, batch: HeadBatch) -> None:
        if not len(self.class_images):
            self._grow(batch.logits.shape[1])
        super().update(batch)

    def before_sync(self) -> None:
        classes = max(ranks.gather(len(self.class_images)))
        if not len(self.class_images):
            self._grow(classes)

    def _grow(self, classes: int) -> None:
        with torch.inference_mode(False):
            for name in [name for name, (shape, _) in self.declared.items() if "C" in shape]:
                empty = getattr(self, name)
                setattr(self, name, empty.new_zeros(*empty.shape[:-1], classes))
        names = [*self.class_names] or [f"class {number}" for number in range(classes)]
        self.axes = dict.fromkeys(self.tables, names)


class PairedLosses(Measure):
    """Base of measures of what heads that are off change.

    ablation: a mask per head. sign: -1 if a fall counts.
    """

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
        right, loss = outcomes_of(batch, batch.logits, self.name)
        right_AV, loss_AV = outcomes_of(batch, batch.ablated[self.ablation], self.name)
        self.both += (right & right_AV).sum(1)
        self.lost += (right & ~right_AV).sum(1)
        self.won += (~right & right_AV).sum(1)
        rise_AV = self.sign * (loss_AV - loss)
        self.rise += rise_AV.sum(1)
        self.square += rise_AV.square().sum(1)
        times_RV = batch.derive(_times, self.ablation.fill)
        self.resampled += times_RV.double() @ rise_AV.double().T
        self.drawn += times_RV.sum(1)
        return right, right_AV

    def losses(self) -> dict[str, Tensor]:
        """Columns value, standard_error, low and high: 95 % percentile interval, NaN with a single image."""
        mean_RA = self.resampled[self.drawn > 0] / self.drawn[self.drawn > 0, None]
        low, high = percentiles(mean_RA if self.images > 1 else mean_RA * torch.nan)
        shared = self.ablation.fill == "resample"  # images share donors, and are not independent
        error = mean_RA.std(0) if shared else standard_error(self.rise, self.square, self.images)
        return {"value": self.rise / self.images, "standard_error": error, "low": low, "high": high}

    def drops(self) -> dict[str, Tensor]:
        """Columns drop, drop_low and drop_high: share right with all heads - share right under the mask."""
        low, high = paired_difference(self.both, self.lost, self.won, self.images)
        return {
            "drop": (self.lost - self.won).double() / self.images,
            "drop_low": low,
            "drop_high": high,
        }

    def whole(self) -> Tensor:
        """() accuracy with all heads."""
        return (self.both + self.lost)[0].double() / self.images


def _times(batch: HeadBatch, fill: FillName) -> Tensor:
    """(R, V) int64 how often each resample has each image; with fill=resample those that share a donor as often."""
    number_V = donor_of(numbers_in(batch)) if fill == "resample" else numbers_in(batch)
    resample_R = torch.arange(1, RESAMPLES + 1, device=number_V.device)
    even_RV = (mixed(number_V + (resample_R * _GOLDEN)[:, None]) & 2**53 - 1).double() / 2**53
    return torch.searchsorted(_LAW.to(number_V.device), even_RV, right=True)
