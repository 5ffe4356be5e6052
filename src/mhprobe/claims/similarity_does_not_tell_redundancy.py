"""A head that resembles another of its block is missed no less."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, go_together, in_blocks, most_alike, with_noise


def effect(evidence: Evidence) -> Estimate:
    """Rank correlation, over the heads of a block, of likeness to the nearest head and rise of the loss without it."""
    nearest = most_alike(evidence.columns("svcca")["value"], in_blocks(evidence.layout))
    cost = evidence.columns("ablation_delta")
    return with_noise(evidence.layout, go_together(evidence.layout, nearest, cost["value"]), cost)


CLAIM = Claim(
    says="Likeness does not tell which heads can go.",
    source="ours, docs/papers/byun_kim.md, the open question",
    network="ViT and Swin on CIFAR-10",
    effect=effect,
    unit="(rank correlation)",
    matters=0.3,
    because="less explains under a tenth of the variance of ranks",
    measures=("svcca", "ablation_delta"),
    shape="none",
)
