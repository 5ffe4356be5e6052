"""Some heads look at one fixed place relative to the query."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share


def effect(evidence: Evidence) -> Estimate:
    """Share of heads whose largest weight is at one offset for 90 % of the queries."""
    columns = evidence.columns("position")
    sure, possible = columns["low"] >= 0.9, columns["high"] >= 0.9
    return share(sure, possible, images=columns["images"])


CLAIM = Claim(
    says="Some heads are positional: one offset has their largest weight for 90 % of the queries.",
    source="Voita et al. 2019, section 4",
    network="a translation model",
    effect=effect,
    unit="of the heads",
    matters=0.05,
    because="one head in twenty; the paper has several in each layer",
    measures=("position",),
)
