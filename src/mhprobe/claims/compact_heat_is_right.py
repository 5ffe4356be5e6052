"""Chance that a rightly classified image has the hotter rollout than a wrongly classified one, minus a half."""

from mhprobe.claims.parts import Estimate, Evidence, Margin, claim, more_often


@claim(
    says="The more compact the heat, the likelier the answer is right.",
    source="Tran, report on attention rollout; small vision transformers",
    margin=Margin(0.05, "of the chance that it is hotter, beyond a half", "an eye is wrong nearly half of the time"),
)
def effect(of: Evidence) -> Estimate:
    return more_often(of.of_images("heat"), of.of_images("right") > 0.5)
