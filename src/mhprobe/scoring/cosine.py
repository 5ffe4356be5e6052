"""Cosine distance of an image's output, logits or features, to the unmasked model's."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.masking.base import Scored
from mhprobe.scoring.base import Score

# distance of outputs of length 1: two of equal pictures, from batches of other sizes, round
# differently
ALIKE = 1e-5


class Cosine(Score):
    """Right: of all images' unmasked outputs its own is the nearest.

    Loss: 1 - cosine to its own, in [0, 2].

    The output of an equal picture is as good as its own: a folder may hold a photograph twice.
    """

    scored = Scored(
        "cosine",
        "retrieval",
        "retrieval of the own unmasked output",
        "1 - cosine to the unmasked output",
    )
    of_features: ClassVar[bool] = True

    def __init__(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(outputs, labels)
        self.units = F.normalize(self.outputs, dim=1)

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # mask by mask: the cosines of all masks to all images would be M * B * N numbers
        judged = [self.judge(F.normalize(of_mask.double(), dim=1), index) for of_mask in outputs]
        right, loss = zip(*judged, strict=True)
        return torch.stack(right), torch.stack(loss)

    def judge(self, units_BC: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Score one mask: outputs of length 1 -> right (B,) and loss (B,)."""
        itself_B = (units_BC * self.units[index]).sum(
            1
        )  # of the product with all images the last bit depends on N
        nearest_B = (units_BC @ self.units.mT).argmax(1)
        return (self.units[nearest_B] - self.units[index]).norm(dim=1) <= ALIKE, 1 - itself_B
