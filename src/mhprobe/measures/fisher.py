"""Fisher information of a head's gate: the mean over images of the squared slope.

Kwon et al., 2022, arXiv 2204.09656: the diagonal of the mask's empirical Fisher information, from
labels. Half of it estimates the loss of masking at a converged model. Unlike in gate importance,
images that the head decides count more.
"""

from typing import Any

from mhprobe.heads import HeadLayout
from mhprobe.measures.gate_importance import SQUARED, GateImportance, Normalize


class Fisher(GateImportance):
    """Mean over images of (d loss / d gate) ** 2, for all heads in one backward pass.

    normalize and the columns as in GateImportance, in squared nats per squared unit of gate; larger
    is more important.
    """

    fooled_by = "seen: a head that hurts looks like one that helps; by definition: a few large losses carry the mean"
    label, unit = SQUARED
    larger = "the loss depends more on the head's gate"

    def __init__(self, layout: HeadLayout, normalize: Normalize = "none", **kwargs: Any) -> None:
        super().__init__(layout, abs_at="image", power=2, normalize=normalize, **kwargs)
