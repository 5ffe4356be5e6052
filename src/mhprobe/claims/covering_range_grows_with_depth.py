"""Late heads cover a wider neighbourhood of their favourite key than early ones."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, late_minus_early


def effect(evidence: Evidence) -> Estimate:
    """Radius of half of the mass around the favourite key, over that of even attention: late minus early blocks."""
    columns = evidence.columns("attention_range")
    return late_minus_early(evidence.layout, columns["value"] / columns["uniform"])


CLAIM = Claim(
    says="The covering range of heads grows with depth.",
    source="Byun & Kim, covering range",
    network="Swin-B and ViT",
    effect=effect,
    unit="of the range of even attention",
    matters=0.1,
    because="less is under a patch in a grid of eight by eight",
    measures=("attention_range",),
)
