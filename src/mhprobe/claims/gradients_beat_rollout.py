"""Area under deletion by rollout minus that by the gradient rollout: a lower area is better."""

from mhprobe.claims.parts import DELETION, Estimate, Evidence, claim, over_images


@claim(
    says="Attention weighted by its gradient is more faithful than rollout.",
    source="Chefer et al. 2021, gradient-weighted rollout; vision transformers",
    margin=DELETION,
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("rollout") - of.of_images("gradient_rollout"))
