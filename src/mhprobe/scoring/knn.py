"""Whether an output, logits or features, still lies among unmasked ones of its class: nearest neighbours."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.errors import UserError
from mhprobe.masking.base import Scored
from mhprobe.scoring.cosine import Cosine

NEIGHBOURS = 5


class KNN(Cosine):
    """Right: most of the 5 other images whose unmasked outputs are nearest, by cosine, have its label.

    Of equals the smaller label. Loss: the share of them that have not.
    """

    scored = Scored("knn", "knn_accuracy", "5-nearest-neighbour accuracy", "share of 5 neighbours of another class")
    labelled: ClassVar[bool] = True

    def __init__(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(outputs, labels)
        if len(outputs) <= NEIGHBOURS:
            raise UserError(f"score=knn: needs more than {NEIGHBOURS} images, got {len(outputs)}.")

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        assert self.labels is not None  # score_for looked
        alike_MBN = self.alike(outputs)
        alike_MBN = alike_MBN.scatter(-1, index.expand(alike_MBN.shape[:-1])[..., None], -torch.inf)
        near_MBK = self.labels[alike_MBN.topk(NEIGHBOURS).indices]
        true_B = self.labels[index]
        votes = F.one_hot(near_MBK, int(self.labels.max()) + 1).sum(-2)
        return votes.argmax(-1) == true_B, (near_MBK != true_B[:, None]).double().mean(-1)
