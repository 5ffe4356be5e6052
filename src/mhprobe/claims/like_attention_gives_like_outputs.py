"""Heads that look at the same places give like outputs."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together


def effect(evidence: Evidence) -> Estimate:
    """Minus the rank correlation of divergence of attention and CKA of outputs, over the pairs of each block."""
    divergence, likeness = (evidence.columns(name)["value"] for name in ("js_distance", "cka"))
    return go_together(evidence.layout, -divergence, likeness)


CLAIM = Claim(
    says="Heads that attend alike write alike.",
    source="ours, docs/papers/byun_kim.md",
    network="ViT and Swin on CIFAR-10",
    effect=effect,
    unit="(rank correlation)",
    matters=0.3,
    because="less explains under a tenth of the variance of ranks",
    measures=("js_distance", "cka"),
)
