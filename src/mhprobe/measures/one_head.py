"""Would one head do? All heads of a layer but one are switched off, and the one that suffices best is kept.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, section 3.3 (tables 2 and 3), choose each layer's
best head on the test set; here it is chosen on validation images and scored on test images.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import Ablation, HeadBatch, HeadLayout
from mhprobe.measures.base import counts, mean_of, sums
from mhprobe.measures.parts.losses import PairedLosses, outcomes_of
from mhprobe.stats.significance import mcnemar, wilson


class OneHead(PairedLosses):
    """Sufficiency of a head: the model with this head as its layer's only one, the other layers whole.

    Columns, (A,) unless said otherwise: value: mean log-likelihood of the label with the head alone
    - with the whole layer, in nats; larger: it suffices better, 0: as well as the layer;
    standard_error; low, high: 95 % interval by bootstrap over images, paired; accuracy: with the
    head alone, in [0, 1]; accuracy_low, accuracy_high: Wilson's 95 % interval; validation: accuracy
    on the selection images, NaN without any; chosen: 1 for the head of its layer that was best on
    them (ties: the lowest loss, then the first), else 0; test_best: 1 for the best of its layer on
    the test images, which flatters; drop: whole - accuracy; drop_low, drop_high: its paired 95 %
    interval; p: exact McNemar of the head alone against the whole layer, not corrected: one head
    per layer is chosen before; whole: () accuracy of the whole model.
    """

    fooled_by = "by definition: a layer that can do without any head: all of its heads suffice"
    label = "log-likelihood, head alone - whole layer (nats)"
    unit = "nats"
    larger = "the head alone serves as well as the layer"
    also = ("sufficiency",)
    sign = -1

    seen: Tensor = counts()  # selection images
    seen_right: Tensor = counts("A")  # right with the head alone
    seen_loss: Tensor = sums("A")  # of loss with the head alone

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        layers = [range(layout.num_heads)[layout.span(site)] for site in range(len(layout.sites))]
        self.ablation = Ablation(
            tuple(tuple(h for h in layer if h != head) for layer in layers for head in layer)
        )
        self.needs = self.select_needs = frozenset({self.ablation})

    def select(self, batch: HeadBatch) -> None:
        right_AB, loss_AB = outcomes_of(batch, batch.ablated[self.ablation], self.name)
        self.seen_right += right_AB.sum(1)
        self.seen_loss += loss_AB.sum(1)
        self.seen += batch.valid.sum()

    def add(self, batch: HeadBatch) -> None:
        self.compare(batch)

    def finish(self) -> dict[str, Tensor]:
        right, seen = self.both + self.won, bool(self.seen)
        accuracy_low, accuracy_high = wilson(right, self.images)
        return {
            **self.losses(),
            "accuracy": right.double() / self.images,
            "accuracy_low": accuracy_low,
            "accuracy_high": accuracy_high,
            "validation": mean_of(self.seen_right, self.seen),
            "chosen": self._best(self.seen_right, self.seen_loss)
            if seen
            else torch.zeros_like(right),
            "test_best": self._best(right, -self.rise),
            **self.drops(),
            "p": mcnemar(self.lost, self.won),
            "whole": self.whole(),
        }

    def _best(self, right_A: Tensor, loss_A: Tensor) -> Tensor:
        """(A,) 1 for the head of each layer that gets most images right; the lower loss breaks ties."""
        best_A = torch.zeros_like(right_A)
        for site in range(len(self.layout.sites)):
            span = self.layout.span(site)
            tied = right_A[span] == right_A[span].max()
            best_A[span.start + loss_A[span].masked_fill(~tied, torch.inf).argmin()] = 1
        return best_A
