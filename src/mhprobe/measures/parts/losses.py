"""Loss of each image, by one function for all, its slope along each head's gate, and sums per class of the labels.

Equal logits give equal losses. The slopes are what importance and Fisher information are made of: dL/dxi_h = sum over
tokens and width of z * dL/dz; a windowed site's windows belong to one image and are summed.

Shapes: V valid images; leading axes are masks.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadBatch, wide
from mhprobe.measures.base import Measure, counts


def outcomes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits and (B,) labels -> right (..., B) bool, and loss (..., B) float64, cross-entropy in nats."""
    # float64, because differences between masks are small against the loss itself
    exact = logits.double()
    at_label = exact.gather(-1, labels.expand(exact.shape[:-1])[..., None]).squeeze(-1)
    # argmax would call NaN the largest; a loss that is NaN says so in the sums
    return logits.argmax(-1) == labels, exact.logsumexp(-1) - at_label


def labels_of(batch: HeadBatch) -> Tensor:
    """(V,) labels of the valid images."""
    return batch.need("labels", "ablation")[batch.valid]


def outcomes_of(batch: HeadBatch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits of a batch -> right and loss, (..., V), of its valid images."""
    return outcomes(logits[..., batch.valid, :], labels_of(batch))


def gate_slopes(batch: HeadBatch, name: str) -> Tensor:
    """(B, A) float64, once per batch for all measures. name: of the measure that asks, for its error."""
    batch.need("grad", name)
    return batch.derive(_gate_slopes)


def _gate_slopes(batch: HeadBatch) -> Tensor:
    return torch.cat([t.sum(1) for t in token_slopes(batch, "gate slopes")], 1)


def token_slopes(batch: HeadBatch, name: str) -> Iterator[Tensor]:
    """Per site (B, T, H) float64: the slope along a gate on this token's head alone. One site at a time is kept."""
    # products of narrow types are exact in float32, their sums are not
    pairs = zip(batch.z, batch.need("grad", name), strict=True)
    return ((wide(z) * wide(g)).sum(-1, dtype=torch.float64) for z, g in pairs)


class PerClass(Measure):
    """Base of measures with sums (..., C). tables: columns that have a number per class, which ``axes`` names.

    Only logits tell how many classes there are. So the sums grow once: at the first batch, or, on a rank that was shown
    nothing, before all ranks add up.
    """

    tables: ClassVar[tuple[str, ...]]

    class_images: Tensor = counts("C")

    def update(self, batch: HeadBatch) -> None:
        if not len(self.class_images):
            self._grow(batch.logits.shape[1])
        super().update(batch)

    def before_sync(self) -> None:
        classes = max(ranks.gather(len(self.class_images)))
        if not len(self.class_images):
            self._grow(classes)

    def _grow(self, classes: int) -> None:
        with torch.inference_mode(False):
            for name in [name for name, (shape, _) in self.declared.items() if "C" in shape]:
                empty = getattr(self, name)
                setattr(self, name, empty.new_zeros(*empty.shape[:-1], classes))
        names = [*self.class_names] or [f"class {number}" for number in range(classes)]
        self.axes = dict.fromkeys(self.tables, names)
