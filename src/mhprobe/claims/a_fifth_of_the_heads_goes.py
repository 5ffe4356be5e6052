"""Accuracy lost without the fifth of the heads that validation images call least important."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, loss_at


@claim(
    says="A fifth of the heads goes for less than a point.",
    source="Michel et al. 2019, Figure 3, no noticeable loss; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
    shape="at most",
)
def effect(of: Evidence) -> Estimate:
    return loss_at(of, "importance", 0.2)
