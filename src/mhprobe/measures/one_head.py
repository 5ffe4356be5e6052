"""Would one head do? All heads of a layer but one are switched off, and the one that suffices best is kept.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, section 3.3 (tables 2 and 3). They choose each layer's best head on the
test set; here it is chosen on validation images and scored on test images, with the test's own best beside it.

Shapes: B images, A heads of all sites, L sites.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import Ablation, HeadBatch, HeadLayout
from mhprobe.measures.base import Measure, mean_of
from mhprobe.measures.parts.losses import outcomes_of
from mhprobe.measures.parts.resampling import add_resamples, declare_resamples, resampled_interval
from mhprobe.stats.significance import mcnemar, paired_difference, standard_error, wilson


class OneHead(Measure):
    """Sufficiency of a head: the model with this head as its layer's only one, the other layers whole.

    Columns, (A,) where nothing else is said:
        value: mean log-likelihood of the label with the head alone - with the whole layer, in nats; 0: it does as
        well, larger: it suffices better; standard_error; low, high: 95 % interval by bootstrap over images, paired;
        accuracy: with the head alone, in [0, 1]; accuracy_low, accuracy_high: Wilson's 95 % interval;
        validation: accuracy on the selection images, NaN where none were shown;
        chosen: 1 for the head of its layer that was best on them (ties: the lowest loss, then the first), else 0;
        test_best: 1 for the best of its layer on the test images, which flatters;
        drop: whole - accuracy; drop_low, drop_high: its paired 95 % interval; p: exact McNemar of the head alone
        against the whole layer (not corrected: one head per layer is chosen before the test);
        whole: () accuracy of the whole model; images: ().
    """

    fooled_by = "by definition: a layer that can do without any head: all of its heads suffice"
    kind = "per_head"
    label = "log-likelihood, head alone - whole layer (nats)"
    unit = "nats"
    larger = "the head alone serves as well as the layer"
    also = ("sufficiency",)

    both: Tensor  # (A,) images right with the whole layer and with the head alone
    lost: Tensor  # (A,) right with the whole layer only
    won: Tensor  # (A,) right with the head alone only
    fall: Tensor  # (A,) sum of loss with the whole layer - loss with the head alone
    square: Tensor  # (A,) sum of its squares
    seen: Tensor  # () selection images
    seen_right: Tensor  # (A,) right with the head alone
    seen_loss: Tensor  # (A,) sum of loss with the head alone

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        masks = []
        for site in range(len(layout.sites)):
            layer = range(layout.num_heads)[layout.span(site)]
            masks += [tuple(other for other in layer if other != head) for head in layer]
        self.ablation = Ablation(tuple(masks))
        self.needs = self.select_needs = frozenset({self.ablation})
        for name in ("both", "lost", "won", "seen_right"):
            self.add_state(name, torch.zeros(layout.num_heads, dtype=torch.long))
        for name in ("fall", "square", "seen_loss"):
            self.add_state(name, torch.zeros(layout.num_heads, dtype=torch.float64))
        declare_resamples(self, layout.num_heads)
        self.add_state("seen", torch.zeros((), dtype=torch.long))

    def select(self, batch: HeadBatch) -> None:
        if not batch.valid.any():
            return
        right_AB, loss_AB = outcomes_of(batch, batch.ablated[self.ablation])
        self.seen_right += right_AB.sum(1)
        self.seen_loss += loss_AB.sum(1)
        self.seen += batch.valid.sum()

    def update(self, batch: HeadBatch) -> None:
        if not batch.valid.any():
            return
        right, loss = outcomes_of(batch, batch.logits)
        right_AB, loss_AB = outcomes_of(batch, batch.ablated[self.ablation])
        self.both += (right & right_AB).sum(1)
        self.lost += (right & ~right_AB).sum(1)
        self.won += (~right & right_AB).sum(1)
        self.fall += (loss - loss_AB).sum(1)
        self.square += (loss - loss_AB).square().sum(1)
        add_resamples(self, batch, loss - loss_AB)
        self.images += batch.valid.sum()

    def finish(self) -> dict[str, Tensor]:
        right, images = self.both + self.won, self.images
        fall, error = self.fall / images, standard_error(self.fall, self.square, images)
        accuracy_low, accuracy_high = wilson(right, images)
        drop_low, drop_high = paired_difference(self.both, self.lost, self.won, images)
        low, high = resampled_interval(self)
        seen = bool(self.seen)
        return {
            "value": fall,
            "standard_error": error,
            "low": low,
            "high": high,
            "accuracy": right.double() / images,
            "accuracy_low": accuracy_low,
            "accuracy_high": accuracy_high,
            "validation": mean_of(self.seen_right, self.seen),
            "chosen": self._best(self.seen_right, self.seen_loss) if seen else torch.zeros_like(right),
            "test_best": self._best(right, -self.fall),
            "drop": (self.lost - self.won).double() / images,
            "drop_low": drop_low,
            "drop_high": drop_high,
            "p": mcnemar(self.lost, self.won),
            "whole": (self.both + self.lost)[0].double() / images,
        }

    def _best(self, right_A: Tensor, loss_A: Tensor) -> Tensor:
        """(A,) 1 for the head of each layer that gets most images right; the lower loss breaks ties."""
        best_A = torch.zeros_like(right_A)
        for site in range(len(self.layout.sites)):
            span = self.layout.span(site)
            tied = right_A[span] == right_A[span].max()
            best_A[span.start + loss_A[span].masked_fill(~tied, torch.inf).argmin()] = 1
        return best_A
