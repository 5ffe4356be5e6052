"""Rank correlation of gradient importance on two data sets over the heads of a block, minus a half."""

from mhprobe.claims.parts import MOSTLY, Columns, Estimate, Evidence, claim, go_together


@claim(
    says="Importance of heads is the same on another data set.",
    source="Michel et al. 2019, Figure 2 (accuracy; here gradients); a translation model, BERT",
    margin=MOSTLY,
)
def effect(of: Evidence, gate_importance: Columns) -> Estimate:
    return go_together(of.layout, gate_importance["value"], of.second("gate_importance")["value"]).beyond(0.5)
