"""Without the heads of early blocks more is lost than without those of late blocks."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.masked import gained, without_thirds


def effect(evidence: Evidence) -> Estimate:
    """Accuracy without all heads of the late third of the blocks minus that without the early third."""
    early, _, late = without_thirds(evidence)
    return gained(evidence, late[None], early[None])


CLAIM = Claim(
    says="Heads of early blocks are needed more than heads of late ones.",
    source="ours, docs/papers/michel.md, Figure 4",
    network="ViT and Swin on CIFAR-10",
    effect=effect,
    unit="of accuracy",
    matters=0.02,
    because="two points are beyond what two data sets of 10,000 images differ in",
)
