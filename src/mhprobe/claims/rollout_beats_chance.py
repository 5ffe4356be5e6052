"""Area under deletion in a random order minus that by rollout: a lower area is better."""

from mhprobe.claims.parts import DELETION, Estimate, Evidence, claim, over_images


@claim(
    says="Rollout is more faithful than a random order of patches.",
    source="Abnar & Zuidema 2020; Transformers for text",
    margin=DELETION,
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("random") - of.of_images("rollout"))
