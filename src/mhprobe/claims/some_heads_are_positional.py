"""Share of heads whose largest weight is at one offset for 90 % of the queries."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, share


@claim(
    says="Some heads are positional: one offset has their largest weight for 90 % of the queries.",
    source="Voita et al. 2019, section 4; a translation model",
    figure="voita/positional",
    margin=Margin(0.05, "of the heads", "one head in twenty; the paper has several in each layer"),
)
def effect(of: Evidence, position: Columns) -> Estimate:
    return share(position["low"] >= 0.9, position["high"] >= 0.9, images=position["images"])
