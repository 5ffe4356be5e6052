"""Most heads of late blocks look at the whole image."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share, third_of


def effect(evidence: Evidence) -> Estimate:
    """Share of heads of the late third of the blocks with 90 % of the distance of an even look, minus a half."""
    columns = evidence.columns("attention_distance")
    late = third_of(evidence.layout) == 2
    low, high = (columns[end][late] / columns["whole"][late] for end in ("low", "high"))
    return share(low >= 0.9, high >= 0.9, against=0.5, images=columns["images"])


CLAIM = Claim(
    says="Most late heads look at the whole image.",
    source="Raghu et al. 2021, arXiv 2108.08810",
    network="large ViTs",
    effect=effect,
    unit="of the late heads, beyond a half",
    matters=0.1,
    because="three heads of five are most",
    measures=("attention_distance",),
)
