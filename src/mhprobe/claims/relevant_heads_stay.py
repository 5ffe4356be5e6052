"""The heads that pruning keeps are the relevant ones of their block."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together


def effect(evidence: Evidence) -> Estimate:
    """Rank correlation, over the heads of a block, of relevance and how long the order of importance keeps a head."""
    stays = -evidence.path("importance")[0].sum(0)
    return go_together(evidence.layout, evidence.columns("lrp_relevance")["value"], stays.double())


CLAIM = Claim(
    says="Relevance follows what pruning keeps.",
    source="Voita et al. 2019 (gates; here an order of importance)",
    network="a translation model",
    effect=effect,
    unit="(rank correlation)",
    matters=0.3,
    because="less explains under a tenth of the variance of ranks",
    measures=("lrp_relevance",),
)
