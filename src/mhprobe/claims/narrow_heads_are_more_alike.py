"""Mean canonical correlation above chance of the pairs of a block: narrow heads minus wide ones.

Of the blocks of this network, or of this network and another one whose heads are wider and whose claims were judged.
"""

import torch

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of, minus_another
from mhprobe.errors import UserError


@claim(
    says="Narrow heads are more alike than wide ones.",
    source="What makes each head unique? (its own figures were not at hand); vision transformers",
    margin=Margin(0.05, "of canonical correlation", "a third of what Byun & Kim's blocks differ by"),
)
def effect(of: Evidence, svcca: Columns) -> Estimate:
    width = torch.tensor([site.head_dim for _, _, site in of.layout])
    if (narrow := width < width.max()).any():
        return mean_of(of.layout, svcca["value"], svcca["null"], narrow, ~narrow)
    judged = [row for row in of.run("wider").rows("claims") if row["claim"] == "heads_of_a_block_are_alike"]
    if not judged or judged[0]["effect"] is None:
        raise UserError("the network of wider heads has no number for heads_of_a_block_are_alike.")
    return minus_another(mean_of(of.layout, svcca["value"], svcca["null"]), judged[0])
