"""Attention distance over that of even attention to the whole image: late half of the blocks minus early half."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, late_minus_early


@claim(
    says="Attention reaches further the deeper the block.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the distance of even attention", "a tenth of an even look at the whole image"),
)
def effect(of: Evidence, attention_distance: Columns) -> Estimate:
    return late_minus_early(of.layout, attention_distance["value"] / attention_distance["whole"])
