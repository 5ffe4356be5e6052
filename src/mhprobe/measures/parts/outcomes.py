"""Right images and losses, by one function for all, so that equal logits give equal numbers.

Shapes: B images, V valid images, C classes; leading axes are masks.
"""

from __future__ import annotations

from torch import Tensor

from mhprobe.heads import HeadBatch


def outcomes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits and (B,) labels -> right (..., B) bool, and loss (..., B) float64, cross-entropy in nats."""
    # float64, because differences between masks are small against the loss itself
    wide = logits.double()
    at_label = wide.gather(-1, labels.expand(wide.shape[:-1])[..., None]).squeeze(-1)
    # argmax would call NaN the largest; a loss that is NaN says so in the sums
    return logits.argmax(-1) == labels, wide.logsumexp(-1) - at_label


def labels_of(batch: HeadBatch) -> Tensor:
    """(V,) labels of the valid images."""
    return batch.need("labels", "ablation")[batch.valid]


def outcomes_of(batch: HeadBatch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits of a batch -> right and loss, (..., V), of its valid images."""
    return outcomes(logits[..., batch.valid, :], labels_of(batch))
