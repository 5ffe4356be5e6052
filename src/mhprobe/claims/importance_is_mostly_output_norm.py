"""The gradient importance of a head is mostly how much it writes."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together


def effect(evidence: Evidence) -> Estimate:
    """Rank correlation of gradient importance and norm of the writes over the heads of a block, minus a half."""
    importance, norm = (evidence.columns(name)["value"] for name in ("gate_importance", "write_norm"))
    return go_together(evidence.layout, importance, norm, against=0.5)


CLAIM = Claim(
    says="Gradient importance is mostly the norm of what a head writes.",
    source="ours, docs/headbench.md",
    network="ViT and Swin on CIFAR-10",
    effect=effect,
    unit="(rank correlation, beyond .5)",
    matters=0.2,
    because="at .7 the norm explains half of the variance of ranks",
    measures=("gate_importance", "write_norm"),
)
