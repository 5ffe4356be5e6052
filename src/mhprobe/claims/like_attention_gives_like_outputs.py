"""Minus the rank correlation of divergence of attention and CKA of outputs, over the pairs of each block."""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, go_together


@claim(
    says="Heads that attend alike write alike.",
    source="ours, docs/papers/byun_kim.md; ViT and Swin on CIFAR-10",
    margin=RANKS,
)
def effect(of: Evidence, js_distance: Columns, cka: Columns) -> Estimate:
    return go_together(of.layout, -js_distance["value"], cka["value"])
