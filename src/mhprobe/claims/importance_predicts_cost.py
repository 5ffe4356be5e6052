"""Rank correlation of gradient importance and rise of the loss without the head, over the heads of a block."""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, goes_with_cost


@claim(
    says="Gradient importance tells which heads cost most.",
    source="Michel et al. 2019; a translation model, BERT",
    margin=RANKS,
)
def effect(of: Evidence, gate_importance: Columns, ablation_delta: Columns) -> Estimate:
    return goes_with_cost(of.layout, gate_importance["value"], ablation_delta)
