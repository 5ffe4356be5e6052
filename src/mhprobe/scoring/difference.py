"""Squared difference of an image's output from the unmasked model's, in units of how much outputs spread."""

from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.masking.base import Scored
from mhprobe.scoring.base import Score

# distance, in spreads, of two outputs of equal pictures: batches of other sizes round differently
ALIKE = 1e-5


class Difference(Score):
    """Right: of all images' unmasked outputs its own is the nearest, by distance.

    Loss: squared distance to its own, divided by the mean squared distance of unmasked outputs to
    their mean: 1 is as far as an average image. It sees a change of a single number, whose cosine
    is only its sign. UserError if the unmasked outputs of all images are equal.
    """

    scored = Scored(
        "difference",
        "retrieval",
        "retrieval of the own unmasked output, by distance",
        "squared difference from the unmasked output (in variances)",
    )
    of_features: ClassVar[bool] = True
    columns: ClassVar[int] = 1

    def __init__(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(outputs, labels)
        self.spread = (self.outputs - self.outputs.mean(0)).square().sum(1).mean().sqrt()
        # outputs that only differ by rounding have no spread to measure with
        if self.spread <= 1e-9 * self.outputs.abs().max():
            raise UserError(
                f"score=difference: the unmasked model gives all {len(self.outputs)} images the same "
                "output, expected outputs that differ, whose spread is the unit. Give more images, "
                "or other ones."
            )

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        judged = [self._judge(of_mask.double(), index) for of_mask in outputs]
        right, loss = zip(*judged, strict=True)
        return torch.stack(right), torch.stack(loss)

    def _judge(self, outputs_BC: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        own_BC = self.outputs[index]
        nearest_B = torch.cdist(
            outputs_BC, self.outputs, compute_mode="donot_use_mm_for_euclid_dist"
        ).argmin(1)
        apart_B = (self.outputs[nearest_B] - own_BC).norm(dim=1)
        loss_B = ((outputs_BC - own_BC) / self.spread).square().sum(1)
        return apart_B <= ALIKE * self.spread, loss_B
