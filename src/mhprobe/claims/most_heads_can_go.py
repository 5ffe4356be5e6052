"""Most heads, each switched off alone, cost less than a point of accuracy."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share

POINT = 0.01


def effect(evidence: Evidence) -> Estimate:
    """Share of heads whose removal alone costs less than a point, minus a half."""
    columns = evidence.columns("ablation_delta")
    return share(columns["drop_high"] < POINT, columns["drop_low"] < POINT, against=0.5, images=columns["images"])


CLAIM = Claim(
    says="Most heads can be switched off alone for less than a point of accuracy.",
    source="Michel et al. 2019, Table 1",
    network="a translation model, BERT",
    effect=effect,
    unit="of the heads, beyond a half",
    matters=0.1,
    because="three heads of five are most",
    measures=("ablation_delta",),
)
