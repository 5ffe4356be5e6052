"""Early blocks have heads that look near by."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share, third_of


def effect(evidence: Evidence) -> Estimate:
    """Share of heads of the early third of the blocks with at most half of the distance of even attention."""
    columns = evidence.columns("attention_distance")
    early = third_of(evidence.layout) == 0
    low, high = (columns[end][early] / columns["uniform"][early] for end in ("low", "high"))
    return share(high <= 0.5, low <= 0.5, images=columns["images"])


CLAIM = Claim(
    says="Some heads of early blocks look near by.",
    source="Raghu et al. 2021, arXiv 2108.08810",
    network="large ViTs",
    effect=effect,
    unit="of the early heads",
    matters=0.1,
    because="one early head in ten",
    measures=("attention_distance",),
)
