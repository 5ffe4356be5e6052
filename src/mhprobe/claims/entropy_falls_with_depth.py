"""Entropy of attention, as a share of its maximum: early half of the blocks minus late half."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, late_minus_early


@claim(
    says="Attention is broader in early blocks than in late ones.",
    source="Clark et al. 2019, Figure 4; BERT",
    figure="clark/figure_4",
    margin=Margin(0.05, "of maximal entropy", "of 64 patches it is an even look at 52"),
)
def effect(of: Evidence, entropy: Columns) -> Estimate:
    return late_minus_early(of.layout, -entropy["share"])
