"""Claims of "What makes each head unique?": do heads differ, and by what?"""

import torch

from mhprobe.claims.parts.claim import Margin, claim
from mhprobe.claims.parts.estimates import Estimate, mean_of, minus_another
from mhprobe.claims.parts.evidence import Columns, Evidence
from mhprobe.errors import UserError


@claim(
    says="Circuits of heads differ from their initialisation.",
    source="What makes each head unique? (its own figures were not at hand); vision transformers",
    figure="unique/weights",
    margin=Margin(0.02, "of cosine", "random circuits of this width have cosines of about .01"),
)
def circuits_differ_from_initialisation(of: Evidence, weight_similarity: Columns) -> Estimate:
    """Mean size of the cosine of the value-output circuits of two heads of a block: trained minus untrained."""
    return mean_of(of.layout, weight_similarity["cosine_ov"].abs() - of.control("weight_similarity")["cosine_ov"].abs())


@claim(
    says="Narrow heads are more alike than wide ones.",
    source="What makes each head unique? (its own figures were not at hand); vision transformers",
    margin=Margin(0.05, "of canonical correlation", "a third of what Byun & Kim's blocks differ by"),
)
def narrow_heads_are_more_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: narrow heads minus wide ones.

    Of the blocks of this network, or of this network and another one of wider heads, whose claims were judged.
    """
    width = torch.tensor([site.head_dim for _, _, site in of.layout])
    if (narrow := width < width.max()).any():
        return mean_of(of.layout, svcca["value"], svcca["null"], narrow, ~narrow)
    judged = [row for row in of.run("wider").rows("claims") if row["claim"] == "heads_of_a_block_are_alike"]
    if not judged or judged[0]["effect"] is None:
        raise UserError("the network of wider heads has no number for heads_of_a_block_are_alike.")
    return minus_another(mean_of(of.layout, svcca["value"], svcca["null"]), judged[0])
