"""Relevance propagation is more faithful than rollout."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images


def effect(evidence: Evidence) -> Estimate:
    """Area under deletion by rollout minus that by the relevance map: a lower area is better."""
    return over_images(evidence.of_images("rollout") - evidence.of_images("relevance_map"))


CLAIM = Claim(
    says="Relevance propagation is more faithful than rollout.",
    source="Chefer et al. 2021, relevance propagation (here by the rules of Achtibat et al. 2024)",
    network="vision transformers",
    effect=effect,
    unit="of probability, mean over deletion",
    matters=0.02,
    because="a map that is .02 below random orders is hardly one",
)
