"""How far an image's output, logits or features, has turned away from the unmasked model's."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from mhprobe.masking.base import Scored
from mhprobe.scoring.score import Score


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

    def alike(self, outputs: Tensor) -> Tensor:
        """(M, B, N) cosines to the unmasked outputs of all images."""
        return F.normalize(outputs.double(), dim=-1) @ self.units.mT

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        alike_MBN = self.alike(outputs)
        itself_MB = alike_MBN.gather(-1, index.expand(alike_MBN.shape[:-1])[..., None])[..., 0]
        return alike_MBN.argmax(-1) == index, 1 - itself_MB
