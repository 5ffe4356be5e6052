"""Some heads rest on one token that nearly all queries look at."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share


def effect(evidence: Evidence) -> Estimate:
    """Share of heads with one token, in half of the images, that gets half of the attention of nearly all queries."""
    columns = evidence.columns("sinks")
    flags = columns["sink"] >= 0.5
    return share(flags, flags)


CLAIM = Claim(
    says="Some heads are attention sinks.",
    source="Xiao et al. 2024, arXiv 2309.17453",
    network="language models",
    effect=effect,
    unit="of the heads",
    matters=0.05,
    because="one head in twenty",
    measures=("sinks",),
)
