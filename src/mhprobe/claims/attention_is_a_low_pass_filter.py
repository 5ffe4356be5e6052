"""Heads write fewer high frequencies than the stream that they read has."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, mean_of_heads


def effect(evidence: Evidence) -> Estimate:
    """Log amplitude of the highest frequency against the lowest: the stream that a block reads minus writes."""
    columns = evidence.columns("output_frequency")
    return mean_of_heads(evidence.layout, columns["block_input"] - columns["value"])


CLAIM = Claim(
    says="Attention is a low-pass filter.",
    source="Park & Kim 2022, Figure 2",
    network="ViT and Swin on CIFAR-100 and ImageNet",
    effect=effect,
    unit="nats of amplitude",
    matters=0.1,
    because="a tenth of the amplitude",
    measures=("output_frequency",),
)
