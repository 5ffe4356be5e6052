"""Share of heads of the early third of the blocks with at most half of the distance of even attention."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share, third_of


@claim(
    says="Some heads of early blocks look near by.",
    source="Raghu et al. 2021, arXiv 2108.08810; large ViTs",
    margin=Margin(0.1, "of the early heads", "one early head in ten"),
)
def effect(of: Evidence, attention_distance: Columns) -> Estimate:
    early = third_of(of.layout) == 0
    low, high = (attention_distance[end][early] / attention_distance["uniform"][early] for end in ("low", "high"))
    return share(high <= 0.5, low <= 0.5, images=attention_distance["images"])
