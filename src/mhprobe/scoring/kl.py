"""Kullback-Leibler divergence of the distribution over classes from the unmasked model's."""

from torch import Tensor

from mhprobe.masking.base import Scored
from mhprobe.scoring.base import Score


class KL(Score):
    """Right: the largest logit is where the unmasked model has it.

    Loss: KL(unmasked || masked), in nats.
    """

    scored = Scored(
        "kl",
        "agreement",
        "top-1 agreement with the unmasked model",
        "KL divergence from the unmasked model (nats)",
    )

    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        before = self.outputs[index].log_softmax(-1)
        after = outputs.double().log_softmax(-1)
        return outputs.argmax(-1) == self.classes[index], (before.exp() * (before - after)).sum(-1)
