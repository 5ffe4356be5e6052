"""Rank correlation of how long the order of importance keeps a head and rise of the loss without it, in blocks.

Validation images choose the order, test images give the cost.
"""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, goes_with_cost


@claim(
    says="Gradient importance tells which heads cost most.",
    source="Michel et al. 2019; a translation model, BERT",
    margin=RANKS,
)
def effect(of: Evidence, ablation_delta: Columns) -> Estimate:
    return goes_with_cost(of.layout, -of.path("importance")[0].sum(0).double(), ablation_delta)
