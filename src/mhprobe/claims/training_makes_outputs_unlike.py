"""Heads of a block give less alike outputs after training than before."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, mean_of_pairs


def effect(evidence: Evidence) -> Estimate:
    """Mean linear CKA of two heads of a block: untrained minus trained."""
    trained, untrained = (of("cka")["value"] for of in (evidence.columns, evidence.control))
    return mean_of_pairs(evidence.layout, untrained - trained, in_blocks(evidence.layout))


CLAIM = Claim(
    says="Training makes the outputs of heads unlike.",
    source="ours, docs/papers/unique.md",
    network="ViT and Swin on CIFAR-10",
    effect=effect,
    unit="of linear CKA",
    matters=0.1,
    because="a tenth of what two equal heads share",
    measures=("cka",),
)
