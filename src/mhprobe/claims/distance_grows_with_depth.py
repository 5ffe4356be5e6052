"""Late heads look further than early ones."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, late_minus_early


def effect(evidence: Evidence) -> Estimate:
    """Attention distance over that of even attention to the whole image: late half of the blocks minus early half."""
    columns = evidence.columns("attention_distance")
    return late_minus_early(evidence.layout, columns["value"] / columns["whole"])


CLAIM = Claim(
    says="Attention reaches further the deeper the block.",
    source="Raghu et al. 2021, arXiv 2108.08810",
    network="large ViTs",
    effect=effect,
    unit="of the distance of even attention",
    matters=0.1,
    because="a tenth of an even look at the whole image",
    measures=("attention_distance",),
)
