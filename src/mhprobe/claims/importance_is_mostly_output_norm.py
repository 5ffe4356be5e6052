"""Rank correlation of gradient importance and norm of the writes over the heads of a block, minus a half."""

from mhprobe.claims.parts import MOSTLY, Columns, Estimate, Evidence, claim, go_together


@claim(
    says="Gradient importance is mostly the norm of what a head writes.",
    source="ours, docs/headbench.md; ViT and Swin on CIFAR-10",
    margin=MOSTLY,
)
def effect(of: Evidence, gate_importance: Columns, write_norm: Columns) -> Estimate:
    return go_together(of.layout, gate_importance["value"], write_norm["value"]).beyond(0.5)
