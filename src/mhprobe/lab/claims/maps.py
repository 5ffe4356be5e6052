"""Claims about maps of where a network looks."""

from mhprobe.lab.claims.parts.claim import DELETION, Asks, Effect, Margin, claim
from mhprobe.lab.claims.parts.estimates import Estimate, more_often, over_images
from mhprobe.lab.claims.parts.evidence import Evidence


def of_maps(*kinds: str) -> Asks:
    """Return what claims about these kinds of maps ask for."""
    return Asks(images=True, maps=kinds)


def more_faithful(better: str, worse: str) -> Effect:
    """Area under deletion in the order of the map ``worse`` minus that of ``better``: a lower area is better."""
    return lambda of: over_images(of.of_images(worse) - of.of_images(better))


rollout_beats_chance = claim(
    says="Rollout is more faithful than a random order of patches.",
    source="Abnar & Zuidema 2020; Transformers for text",
    margin=DELETION,
    asks=of_maps("rollout"),
)(more_faithful("rollout", "random"))
rollout_beats_raw_attention = claim(
    says="Rollout is more faithful than the attention of the last block.",
    source="Tran, report on attention rollout; small vision transformers",
    margin=DELETION,
    asks=of_maps("rollout", "attention"),
)(more_faithful("rollout", "attention"))
gradients_beat_rollout = claim(
    says="Attention weighted by its gradient is more faithful than rollout.",
    source="Chefer et al. 2021, gradient-weighted rollout; vision transformers",
    margin=DELETION,
    asks=of_maps("gradient_rollout", "rollout"),
)(more_faithful("gradient_rollout", "rollout"))
relevance_maps_beat_rollout = claim(
    says="Relevance propagation is more faithful than rollout.",
    source="Chefer et al. 2021 (here by the rules of Achtibat et al. 2024); vision transformers",
    margin=DELETION,
    asks=of_maps("relevance_map", "rollout"),
)(more_faithful("relevance_map", "rollout"))


@claim(
    says="The more compact the heat, the likelier the answer is right.",
    source="Tran, report on attention rollout; small vision transformers",
    margin=Margin(
        0.05,
        "of the chance that it is hotter, beyond a half",
        "an eye is wrong nearly half of the time",
    ),
    asks=of_maps("rollout"),
)
def compact_heat_is_right(of: Evidence) -> Estimate:
    """Chance that a rightly classified image has the hotter rollout than a wrongly classified one, minus a half."""
    return more_often(of.of_images("heat"), of.of_images("right") > 0.5)
