"""The head that attends most alike is in the same block."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, over_heads
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """Share of heads whose nearest head, by divergence of attention, is in their block, minus that of a random head."""
    value, inside = evidence.columns("js_distance")["value"], in_blocks(evidence.layout)
    compared = value.isfinite() & ~torch.eye(len(value), dtype=torch.bool)
    if not (compared & ~inside).any():
        raise UserError("no two blocks have heads that attend among the same tokens.")

    def beyond(kept: torch.Tensor) -> float:
        among, own = compared[kept][:, kept], inside[kept][:, kept]
        nearest = value[kept][:, kept].masked_fill(~among, torch.inf).argmin(1)
        hits = own.gather(1, nearest[:, None]).double().mean()
        return float(hits - ((own & among).sum(1) / among.sum(1)).mean())

    chance = float(((inside & compared).sum(1) / compared.sum(1).clamp(min=1)).mean())
    return over_heads(evidence.layout, beyond, (compared & ~inside).any(1), chance=chance)


CLAIM = Claim(
    says="Heads cluster by layer.",
    source="Clark et al. 2019, Figure 6",
    network="BERT",
    effect=effect,
    unit="of the heads, beyond chance",
    matters=0.2,
    because="one head in five beyond those that are there by chance",
    measures=("js_distance",),
)
