"""Accuracy without all heads of the late third of the blocks minus that without the early third."""

from mhprobe.claims.parts import Estimate, Evidence, Margin, claim, gained, without_thirds


@claim(
    says="Heads of early blocks are needed more than heads of late ones.",
    source="ours, docs/papers/michel.md, Figure 4; ViT and Swin on CIFAR-10",
    margin=Margin(0.02, "of accuracy", "two points are beyond what two data sets of 10,000 images differ in"),
)
def effect(of: Evidence) -> Estimate:
    return gained(of, without_thirds(of)[2:], without_thirds(of)[:1])
