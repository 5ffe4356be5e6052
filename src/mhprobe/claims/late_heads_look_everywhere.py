"""Share of heads of the late third of the blocks with 90 % of the distance of an even look, minus a half."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share, third_of


@claim(
    says="Most late heads look at the whole image.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the late heads, beyond a half", "three heads of five are most"),
)
def effect(of: Evidence, attention_distance: Columns) -> Estimate:
    late = third_of(of.layout) == 2
    low, high = (attention_distance[end][late] / attention_distance["whole"][late] for end in ("low", "high"))
    return share(low >= 0.9, high >= 0.9, images=attention_distance["images"]).beyond(0.5)
