"""Nearest neighbours: does an output still lie among the unmasked outputs of its class?"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.masking.base import Scored
from mhprobe.scoring.cosine import Cosine

NEIGHBOURS = 5


class KNN(Cosine):
    """Right: most of the 5 nearest other unmasked outputs, by cosine, have its label.

    Loss: the share that have not.

    Of equals the smaller label counts.
    """

    scored = Scored(
        "knn",
        "knn_accuracy",
        "5-nearest-neighbour accuracy",
        "share of 5 neighbours of another class",
    )
    labelled: ClassVar[bool] = True
    least: ClassVar[int] = NEIGHBOURS + 1

    def judge(self, units_BC: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        assert self.labels is not None  # score_for looked
        others_BN = (units_BC @ self.units.mT).scatter(1, index[:, None], -torch.inf)
        near_BK = self.labels[others_BN.topk(NEIGHBOURS).indices]
        true_B = self.labels[index]
        votes_BC = F.one_hot(near_BK, int(self.labels.max()) + 1).sum(1)
        return votes_BC.argmax(1) == true_B, (near_BK != true_B[:, None]).double().mean(1)
