"""Cosine distance of an image's output, logits or features, to the unmasked model's."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.masking.base import Scored
from mhprobe.scoring.base import Score


class Cosine(Score):
    """Right: of all images' unmasked outputs its own is the nearest. Loss: 1 - cosine to its own, in [0, 2]."""

    scored = Scored(
        "cosine",
        "retrieval",
        "retrieval of the own unmasked output",
        "1 - cosine to the unmasked model's output",
    )
    of_features: ClassVar[bool] = True

    def __init__(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(outputs, labels)
        self.units = F.normalize(self.outputs, dim=1)

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # mask by mask: beside each other, cosines to all images would take M * B * N numbers
        judged = [self.judge(F.normalize(each.double(), dim=1), index) for each in outputs]
        return torch.stack([right for right, _ in judged]), torch.stack([loss for _, loss in judged])

    def judge(self, units_BC: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Of one mask: outputs of length 1 -> right (B,) and loss (B,)."""
        # not out of the product with all images: its last bit depends on how many images stand beside each other
        itself_B = (units_BC * self.units[index]).sum(1)
        return (units_BC @ self.units.mT).argmax(1) == index, 1 - itself_B
