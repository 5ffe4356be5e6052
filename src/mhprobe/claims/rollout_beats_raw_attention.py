"""Rollout finds the patches that the prediction hangs on better than the attention of the last block does."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_images


def effect(evidence: Evidence) -> Estimate:
    """Area under deletion by attention of the last block, minus that by rollout: a lower area is better."""
    return over_images(evidence.of_images("attention") - evidence.of_images("rollout"))


CLAIM = Claim(
    says="Rollout is more faithful than the attention of the last block.",
    source="Tran, report on attention rollout, after Abnar & Zuidema 2020",
    network="small vision transformers",
    effect=effect,
    unit="of probability, mean over deletion",
    matters=0.02,
    because="a map that is .02 below random orders is hardly one",
)
