"""Nearest training images: k-NN evaluation of features, of masked and of pruned networks.

Wu et al. 2018, "Unsupervised feature learning via non-parametric instance discrimination", 3.4;
DINO's 20 neighbours.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.masking.base import Scored
from mhprobe.scoring.base import Score, outputs_of_split

NEIGHBOURS, TEMPERATURE = 20, 0.07


class KNNTrain(Score):
    """Right: the 20 training images of nearest outputs, by cosine, vote for its label with weights exp(cosine / .07).

    Of equal votes the smaller label. Loss: the share of votes for others. An image does not vote
    for itself. Each mask costs a walk over all training images. outputs: (T, C) of them, labels:
    (T,); None for both until ``beside``.
    places: (N,) where the images that are judged stand among them; None if they are no training
    images.
    """

    scored = Scored(
        "knn_train", "knn_train_accuracy", "20-nearest-neighbour accuracy", "share of other votes"
    )
    unmasked: ClassVar[bool] = False
    labelled: ClassVar[bool] = True
    of_features: ClassVar[bool] = True
    banked: ClassVar[int] = NEIGHBOURS + 1

    def __init__(
        self,
        outputs: Tensor | None = None,
        labels: Tensor | None = None,
        places: Tensor | None = None,
    ) -> None:
        super().__init__(outputs, labels)
        self.places = places
        if outputs is not None:
            self.units = F.normalize(outputs.float(), dim=1)

    def beside(self, outputs_of: Callable[[Tensor], Tensor]) -> Score:
        if self.labels is not None:
            return self
        assert self.bank is not None  # score_for looked
        return KNNTrain(
            *outputs_of_split(lambda images: outputs_of(images)[0], *self.bank), self.places
        )

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        right, loss = zip(
            *(self._judge(of_mask, index, labels) for of_mask in outputs), strict=True
        )
        return torch.stack(right), torch.stack(loss)

    def _judge(self, outputs_BC: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        assert self.labels is not None  # ``beside`` has looked
        cosine_BT = F.normalize(outputs_BC.float(), dim=1) @ self.units.mT
        if self.places is not None:
            cosine_BT.scatter_(1, self.places.to(index.device)[index][:, None], -torch.inf)
        near_BK, place_BK = cosine_BT.topk(NEIGHBOURS)
        weight_BK = (near_BK.double() / TEMPERATURE).softmax(1)
        classes = int(torch.maximum(self.labels.max(), labels.max())) + 1
        votes = weight_BK.new_zeros(len(labels), classes).scatter_add_(
            1, self.labels[place_BK], weight_BK
        )
        return votes.argmax(1) == labels, 1 - votes.gather(1, labels[:, None]).squeeze(1)
