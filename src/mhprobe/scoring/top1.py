"""Agreement with the unmasked model about the class, for images without labels."""

from torch import Tensor

from mhprobe.masking.base import Scored
from mhprobe.measures.parts.losses import outcomes
from mhprobe.scoring.base import Score


class Top1(Score):
    """Right: the largest logit is where the unmasked model has it.

    Loss: the cross-entropy of that class, in nats.
    """

    scored = Scored("top1", "agreement", "top-1 agreement with the unmasked model")

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outcomes(outputs, self.classes[index])
