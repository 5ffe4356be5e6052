"""Images whose rollout is more concentrated are classified rightly more often."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, more_often


def effect(evidence: Evidence) -> Estimate:
    """Chance that a rightly classified image has the hotter rollout than a wrongly classified one, minus a half."""
    heat, right = evidence.of_images("heat"), evidence.of_images("right") > 0.5
    return more_often(heat[right], heat[~right])


CLAIM = Claim(
    says="The more compact the heat, the likelier the answer is right.",
    source="Tran, report on attention rollout",
    network="small vision transformers",
    effect=effect,
    unit="of the chance that the right one is hotter, beyond a half",
    matters=0.05,
    because="below .55 an eye that compares two images is wrong nearly half of the time",
)
