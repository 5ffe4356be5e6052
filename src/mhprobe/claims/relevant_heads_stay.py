"""Rank correlation, over the heads of a block, of relevance and how long the order of importance keeps a head."""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, go_together


@claim(
    says="Relevance follows what pruning keeps.",
    source="Voita et al. 2019 (gates; here an order of importance); a translation model",
    margin=RANKS,
)
def effect(of: Evidence, lrp_relevance: Columns) -> Estimate:
    return go_together(of.layout, lrp_relevance["value"], -of.path("importance")[0].sum(0).double())
