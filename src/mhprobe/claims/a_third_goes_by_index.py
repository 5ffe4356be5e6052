"""Accuracy lost without a third of the heads, by whole indices that validation images choose."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, loss_at


@claim(
    says="By the best indices a third of the heads goes for less than a point.",
    source="Byun & Kim, Figure 8 (flat to step 4 of 12); Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
    shape="at most",
)
def effect(of: Evidence) -> Estimate:
    return loss_at(of, "head_max", 1 / 3)
