"""Share of heads whose nearest head, by divergence of attention, is in their block, minus that of a random head."""

import torch
from torch import Tensor

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, between_blocks, claim, in_blocks, over_heads


@claim(
    says="Heads cluster by layer.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(0.2, "of the heads, beyond chance", "one head in five beyond those that are there by chance"),
)
def effect(of: Evidence, js_distance: Columns) -> Estimate:
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)
    compared = between | (inside & value.isfinite())

    def beyond(kept: Tensor) -> float:
        among, same_block = compared[kept][:, kept], inside[kept][:, kept]
        nearest = value[kept][:, kept].masked_fill(~among, torch.inf).argmin(1)
        hits = same_block.gather(1, nearest[:, None]).double().mean()
        return float(hits - ((same_block & among).sum(1) / among.sum(1)).mean())

    chance = float(((inside & compared).sum(1) / compared.sum(1).clamp(min=1)).mean())
    return over_heads(of.layout, beyond, between.any(1), chance=chance)
