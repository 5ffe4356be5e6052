"""Accuracy lost without the head of one index in every block, which validation images choose."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, loss


@claim(
    says="One head of every block, the best index, goes for less than a point.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
    shape="at most",
)
def effect(of: Evidence) -> Estimate:
    return loss(of, of.path("head_max")[0, 1])
