"""Which of a batch's images come out right, and what they lose, with all heads on or under masks.

Shapes: B images, V valid images, C classes; leading axes are masks.
"""

from __future__ import annotations

from torch import Tensor

from mhprobe.heads import HeadBatch


def labels_of(batch: HeadBatch) -> Tensor:
    """(V,) labels of the valid images."""
    return batch.need("labels", "ablation")[batch.valid]


def outcomes(logits: Tensor, batch: HeadBatch) -> tuple[Tensor, Tensor]:
    """(..., B, C) logits -> right (..., V) bool, and loss (..., V) float64, cross-entropy in nats."""
    # float64, because differences between masks are small against the loss itself
    logits, labels = logits[..., batch.valid, :].double(), labels_of(batch)
    log_p = logits.log_softmax(-1)
    loss = -log_p.gather(-1, labels.expand(log_p.shape[:-1])[..., None]).squeeze(-1)
    # argmax would call NaN the largest; a loss that is NaN says so in the sums
    return logits.argmax(-1) == labels, loss
