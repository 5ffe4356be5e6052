"""Heads of early blocks spread their attention wider than heads of late blocks."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, late_minus_early


def effect(evidence: Evidence) -> Estimate:
    """Entropy of attention, as a share of its maximum: early half of the blocks minus late half."""
    return late_minus_early(evidence.layout, -evidence.columns("entropy")["share"])


CLAIM = Claim(
    says="Attention is broader in early blocks than in late ones.",
    source="Clark et al. 2019, Figure 4",
    network="BERT",
    effect=effect,
    unit="of maximal entropy",
    matters=0.05,
    because="in 64 patches it is the difference between looking at 64 and at 52 of them evenly",
    measures=("entropy",),
)
