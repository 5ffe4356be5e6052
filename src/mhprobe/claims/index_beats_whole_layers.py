"""Accuracy by indices minus that by layers, mean over the steps by layer, at the nearest numbers of heads."""

from mhprobe.claims.parts import POINT, Estimate, Evidence, claim, gained


@claim(
    says="By the best indices heads cost less than by the best whole layers.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
)
def effect(of: Evidence) -> Estimate:
    by_index, by_layer = (of.path(name)[0] for name in ("head_max", "layer_max"))
    steps = by_layer[1:-1]
    return gained(of, by_index[(by_index.sum(1)[None] - steps.sum(1)[:, None]).abs().argmin(1)], steps)
