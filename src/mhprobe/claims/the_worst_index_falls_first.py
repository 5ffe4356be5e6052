"""Accuracy without a sixth of the heads: best indices minus worst indices, both chosen on validation images."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, at_share, claim, gained


@claim(
    says="A sixth of the heads by the worst indices costs more than by the best.",
    source="Byun & Kim, Figure 9; Swin-B and ViT",
    figure="byun_kim/figure_9",
    margin=POINT,
)
def effect(of: Evidence) -> Estimate:
    return gained(of, *(at_share(of.path(name), 1 / 6) for name in ("head_max", "head_min")))
