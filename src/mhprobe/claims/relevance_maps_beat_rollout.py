"""Area under deletion by rollout minus that by the relevance map: a lower area is better."""

from mhprobe.claims.parts import DELETION, Estimate, Evidence, claim, over_images


@claim(
    says="Relevance propagation is more faithful than rollout.",
    source="Chefer et al. 2021 (here by the rules of Achtibat et al. 2024); vision transformers",
    margin=DELETION,
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("rollout") - of.of_images("relevance_map"))
