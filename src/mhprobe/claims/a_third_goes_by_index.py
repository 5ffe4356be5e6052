"""A third of the heads goes for nothing, an index of all blocks at a time."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import at_share, loss


def effect(evidence: Evidence) -> Estimate:
    """Accuracy lost without a third of the heads, by whole indices that validation images choose."""
    return loss(evidence, at_share(evidence.path("best_index"), 1 / 3)[0])


CLAIM = Claim(
    says="By the best indices a third of the heads goes for less than a point.",
    source="Byun & Kim, Figure 8 (flat to step 4 of 12)",
    network="Swin-B and ViT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
    shape="at most",
)
