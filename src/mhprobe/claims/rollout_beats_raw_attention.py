"""Area under deletion by attention of the last block, minus that by rollout: a lower area is better."""

from mhprobe.claims.parts import DELETION, Estimate, Evidence, claim, over_images


@claim(
    says="Rollout is more faithful than the attention of the last block.",
    source="Tran, report on attention rollout; small vision transformers",
    margin=DELETION,
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("attention") - of.of_images("rollout"))
