"""Gradient importance ranks heads as their removal does."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together, with_noise


def effect(evidence: Evidence) -> Estimate:
    """Rank correlation of gradient importance and rise of the loss without the head, over the heads of a block."""
    importance, cost = (evidence.columns(name) for name in ("gate_importance", "ablation_delta"))
    found = go_together(evidence.layout, importance["value"], cost["value"])
    return with_noise(evidence.layout, found, cost)


CLAIM = Claim(
    says="Gradient importance tells which heads cost most.",
    source="Michel et al. 2019",
    network="a translation model, BERT",
    effect=effect,
    unit="(rank correlation)",
    matters=0.3,
    because="less explains under a tenth of the variance of ranks",
    measures=("gate_importance", "ablation_delta"),
)
