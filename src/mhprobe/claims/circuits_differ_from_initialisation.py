"""Training makes the value-output circuits of a block's heads less orthogonal than they were drawn."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, mean_of_pairs


def effect(evidence: Evidence) -> Estimate:
    """Mean size of the cosine of the circuits of two heads of a block: trained minus untrained."""
    trained, untrained = (of("weight_similarity")["cosine_ov"].abs() for of in (evidence.columns, evidence.control))
    return mean_of_pairs(evidence.layout, trained - untrained, in_blocks(evidence.layout))


CLAIM = Claim(
    says="Circuits of heads differ from their initialisation.",
    source="What makes each head unique? (its own figures were not at hand)",
    network="vision transformers",
    effect=effect,
    unit="of cosine",
    matters=0.02,
    because="random circuits of this width have cosines of about .01",
    measures=("weight_similarity",),
)
