"""Error of the place that is read linearly from a token of the last block: tokens of high norm minus the others.

In each image; the reading is fitted on validation images.
"""

from mhprobe.claims.parts import Estimate, Evidence, Margin, claim, over_images


@claim(
    says="Tokens of high norm hold little of their place.",
    source="Darcet et al. 2024, Figure 5, arXiv 2309.16588; large vision transformers",
    margin=Margin(0.1, "of the error of guessing the middle", "a tenth of what knowing nothing costs"),
)
def effect(of: Evidence) -> Estimate:
    return over_images(of.of_images("high_norm_error") - of.of_images("other_error"))
