"""Rank correlation of confidence and relevance over the heads of a block."""

from mhprobe.claims.parts import RANKS, Columns, Estimate, Evidence, claim, go_together


@claim(
    says="Confident heads are the relevant ones.",
    source="Voita et al. 2019, Figures 1 and 2; a translation model",
    figure="voita/figure_1",
    margin=RANKS,
)
def effect(of: Evidence, confidence: Columns, lrp_relevance: Columns) -> Estimate:
    return go_together(of.layout, confidence["value"], lrp_relevance["value"])
