"""Heads spread over all blocks cost less than as many heads of whole blocks."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import gained


def effect(evidence: Evidence) -> Estimate:
    """Accuracy by indices minus that by layers, mean over the steps by layer, at the nearest numbers of heads."""
    by_index, by_layer = (evidence.path(name)[0] for name in ("best_index", "best_layer"))
    steps = by_layer[1:-1]
    nearest = (by_index.sum(1)[None] - steps.sum(1)[:, None]).abs().argmin(1)
    return gained(evidence, by_index[nearest], steps)


CLAIM = Claim(
    says="By the best indices heads cost less than by the best whole layers.",
    source="Byun & Kim, Figure 8",
    network="Swin-B and ViT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
)
