"""Rank correlation, over the heads of a block, of likeness to the nearest head and rise of the loss without it."""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, goes_with_cost, most_alike


@claim(
    says="Likeness does not tell which heads can go.",
    source="ours, docs/papers/byun_kim.md, the open question; ViT and Swin on CIFAR-10",
    margin=RANKS,
    shape="none",
)
def effect(of: Evidence, svcca: Columns, ablation_delta: Columns) -> Estimate:
    return goes_with_cost(of.layout, most_alike(of.layout, svcca["value"]), ablation_delta)
