"""The worst order by index is worse than the best one from the beginning."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import at_share, gained


def effect(evidence: Evidence) -> Estimate:
    """Accuracy without a sixth of the heads: best indices minus worst indices, both chosen on validation images."""
    best, worst = (at_share(evidence.path(name), 1 / 6) for name in ("best_index", "worst_index"))
    return gained(evidence, best, worst)


CLAIM = Claim(
    says="A sixth of the heads by the worst indices costs more than by the best.",
    source="Byun & Kim, Figure 9",
    network="Swin-B and ViT",
    effect=effect,
    unit="of accuracy",
    matters=0.01,
    because="a point is what a run is known to on 10,000 images",
)
