"""The best index of every block goes for nothing."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import loss


def effect(evidence: Evidence) -> Estimate:
    """Accuracy lost without the head of one index in every block, which validation images choose."""
    return loss(evidence, evidence.path("best_index")[0, 1])


CLAIM = Claim(
    says="One head of every block, the best index, goes for less than a point.",
    source="Byun & Kim, Figure 8",
    network="Swin-B and ViT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
    shape="at most",
)
