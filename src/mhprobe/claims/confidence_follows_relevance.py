"""Heads that are certain where to look are the relevant ones of their block."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together


def effect(evidence: Evidence) -> Estimate:
    """Rank correlation of confidence and relevance over the heads of a block."""
    confidence, relevance = (evidence.columns(name)["value"] for name in ("confidence", "lrp_relevance"))
    return go_together(evidence.layout, confidence, relevance)


CLAIM = Claim(
    says="Confident heads are the relevant ones.",
    source="Voita et al. 2019, Figures 1 and 2",
    network="a translation model",
    effect=effect,
    unit="(rank correlation)",
    matters=0.3,
    because="less explains under a tenth of the variance of ranks",
    measures=("confidence", "lrp_relevance"),
)
