"""Attention weighted by its gradient is more faithful than rollout."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images


def effect(evidence: Evidence) -> Estimate:
    """Area under deletion by rollout minus that by the gradient rollout: a lower area is better."""
    return over_images(evidence.of_images("rollout") - evidence.of_images("gradient_rollout"))


CLAIM = Claim(
    says="Attention weighted by its gradient is more faithful than rollout.",
    source="Chefer et al. 2021, gradient-weighted rollout",
    network="vision transformers",
    effect=effect,
    unit="of probability, mean over deletion",
    matters=0.02,
    because="a map that is .02 below random orders is hardly one",
)
