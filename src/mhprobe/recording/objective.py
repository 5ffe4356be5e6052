"""The scalar that gradients are of: the loss of each image, one of its logits, or the length of its features.

Shapes: B images, C classes.
"""

from typing import Literal

from torch import Tensor, nn

from mhprobe.backbones import puts_out_features
from mhprobe.errors import UserError, one_of
from mhprobe.heads import wide
from mhprobe.recording.state import usable

Of = Literal["loss", "top1", "label", "norm"]
UNLABELLED = ("top1", "norm")  # of these, which need no labels


def refuse_features(model: nn.Module, of: str, where: str = "record") -> None:
    """UserError where features would be taken for logits; a wrapper may have a classifier of its own."""
    if of != "norm" and puts_out_features(model):
        raise UserError(
            f"{where}: {type(model).__name__} gives features, no logits, so its {of} means nothing. Ask for their "
            f"length: target='norm' (of='norm' in mhprobe.record)."
        )


def objective(logits: Tensor, labels: Tensor | None, of: str) -> Tensor:
    """(B, C) -> (B,): cross-entropy of the label in nats, the largest logit, the label's, or the length of all."""
    one_of("record", "of", of, Of)
    if of == "norm":
        return wide(logits).norm(dim=1)
    if of == "top1":
        return logits.amax(1)
    if labels is None:
        raise UserError(f"record: the slope of the {of} needs labels, got None.")
    labels = usable(labels)
    if of == "label":
        return logits.gather(1, labels[:, None]).squeeze(1)
    # in the model's own precision, as its slope is; a loss to be summed is that of measures/parts/losses.py
    return nn.functional.cross_entropy(wide(logits), labels, reduction="none")
