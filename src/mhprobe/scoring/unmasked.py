"""What masks leave of the model itself: agreement with the unmasked model, where nobody has labels.

Every number is per image, as with labels, so that curves, searches and tests take it as they take accuracy and loss.

Shapes: M masks, B images of a batch, N of the split, C classes or features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mhprobe.errors import UserError, one_of
from mhprobe.measures.outcomes import outcomes

Score = Literal["labels", "top1", "kl", "cosine", "knn"]
NEIGHBOURS = 5


class Unmasked:
    """Judges outputs by those of the unmasked model on the same images. Used as ``evaluator(judge=...)``.

    outputs: (N, C) of the unmasked model, in the order of the split. labels: (N,), for "knn" alone.
    score: what right and loss of an image are.
        top1: the largest logit is where it was; the cross-entropy of that class, in nats.
        kl: as top1; the Kullback-Leibler divergence from the unmasked model's distribution, in nats.
        cosine: of all images' unmasked outputs its own is the nearest; 1 - cosine to it.
        knn: most of the 5 other images whose unmasked outputs are nearest, by cosine, have its label (of equals the
            smaller label); the share of them that have not.
    """

    def __init__(self, outputs: Tensor, score: Score, labels: Tensor | None = None) -> None:
        one_of("masking_curve", "score", score, Score)
        if score == "knn" and labels is None:
            raise UserError("masking_curve: score='knn' compares neighbours' labels, and the loader gives none.")
        if score == "knn" and len(outputs) <= NEIGHBOURS:
            raise UserError(f"masking_curve: score='knn' needs more than {NEIGHBOURS} images, got {len(outputs)}.")
        self.outputs, self.score, self.labels = outputs.double(), score, labels
        self.units = F.normalize(self.outputs, dim=1)
        self.own = self.outputs.argmax(1)

    def __call__(self, outputs: Tensor, index: Tensor, _labels: Tensor) -> tuple[Tensor, Tensor]:
        """(M, B, C) under masks, (B,) positions in the split -> right (M, B) bool and loss (M, B) float64."""
        if self.score in ("top1", "kl"):
            right, loss = outcomes(outputs, self.own[index])
            return right, loss if self.score == "top1" else self._divergence(outputs, index)
        alike_MBN = F.normalize(outputs.double(), dim=-1) @ self.units.mT
        if self.score == "cosine":
            itself = alike_MBN.gather(-1, index.expand(alike_MBN.shape[:-1])[..., None])[..., 0]
            return alike_MBN.argmax(-1) == index, 1 - itself
        assert self.labels is not None  # __init__ looked
        alike_MBN = alike_MBN.scatter(-1, index.expand(alike_MBN.shape[:-1])[..., None], -torch.inf)
        near_MBK = self.labels[alike_MBN.topk(NEIGHBOURS).indices]
        true_B = self.labels[index]
        votes = F.one_hot(near_MBK, int(self.labels.max()) + 1).sum(-2)
        return votes.argmax(-1) == true_B, (near_MBK != true_B[:, None]).double().mean(-1)

    def _divergence(self, outputs: Tensor, index: Tensor) -> Tensor:
        before, after = self.outputs[index].log_softmax(-1), outputs.double().log_softmax(-1)
        return (before.exp() * (before - after)).sum(-1)
