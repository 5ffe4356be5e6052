"""Rollout finds patches that the prediction hangs on."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images


def effect(evidence: Evidence) -> Estimate:
    """Area under deletion in a random order minus that by rollout: a lower area is better."""
    return over_images(evidence.of_images("random") - evidence.of_images("rollout"))


CLAIM = Claim(
    says="Rollout is more faithful than a random order of patches.",
    source="Abnar & Zuidema 2020",
    network="Transformers for text",
    effect=effect,
    unit="of probability, mean over deletion",
    matters=0.02,
    because="less is not seen in single images",
)
