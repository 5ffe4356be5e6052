"""The labels of the data set: accuracy and cross-entropy."""

from typing import ClassVar

from torch import Tensor

from mhprobe.masking.base import LABELS
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.checks import check_labels
from mhprobe.scoring.base import Score


class Labels(Score):
    """Right: the largest logit is the label's. Loss: its cross-entropy in nats."""

    scored = LABELS
    unmasked: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        check_labels(labels, outputs.flatten(0, -2))
        return outcomes(outputs, labels)
