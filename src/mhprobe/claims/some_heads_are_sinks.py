"""Share of heads with one token, in half of the images, that gets half of the attention of nearly all queries."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share


@claim(
    says="Some heads are attention sinks.",
    source="Xiao et al. 2024, arXiv 2309.17453; language models",
    margin=Margin(0.05, "of the heads", "one head in twenty"),
)
def effect(of: Evidence, sinks: Columns) -> Estimate:
    return share(sinks["sink"] >= 0.5, sinks["sink"] >= 0.5)
