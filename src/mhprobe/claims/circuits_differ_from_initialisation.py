"""Mean size of the cosine of the value-output circuits of two heads of a block: trained minus untrained."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Circuits of heads differ from their initialisation.",
    source="What makes each head unique? (its own figures were not at hand); vision transformers",
    figure="unique/weights",
    margin=Margin(0.02, "of cosine", "random circuits of this width have cosines of about .01"),
)
def effect(of: Evidence, weight_similarity: Columns) -> Estimate:
    return mean_of(of.layout, weight_similarity["cosine_ov"].abs() - of.control("weight_similarity")["cosine_ov"].abs())
