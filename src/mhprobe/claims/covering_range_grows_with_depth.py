"""Radius of half of the mass around the favourite key, over that of even attention: late minus early blocks."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, late_minus_early


@claim(
    says="The covering range of heads grows with depth.",
    source="Byun & Kim, covering range; Swin-B and ViT",
    figure="byun_kim/covering_range",
    margin=Margin(0.1, "of the range of even attention", "less is under a patch in a grid of eight by eight"),
)
def effect(of: Evidence, attention_range: Columns) -> Estimate:
    return late_minus_early(of.layout, attention_range["value"] / attention_range["uniform"])
