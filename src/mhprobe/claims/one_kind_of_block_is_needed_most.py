"""Heads of one kind of block are needed far more than those of others."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import gained, without_thirds


def effect(evidence: Evidence) -> Estimate:
    """Accuracy without the heads of the other thirds minus that without the third that validation images call worst."""
    masks = without_thirds(evidence)
    worst = int(evidence.right(masks, "validation").double().mean(1).argmin())
    others = [third for third in range(3) if third != worst]
    return gained(evidence, masks[others], masks[[worst]])


CLAIM = Claim(
    says="One third of the depth needs its heads more than the others do.",
    source="Michel et al. 2019, Figure 4 (attention between encoder and decoder)",
    network="a translation model",
    effect=effect,
    unit="of accuracy",
    matters=0.03,
    because="three points are beyond what several single heads cost",
)
