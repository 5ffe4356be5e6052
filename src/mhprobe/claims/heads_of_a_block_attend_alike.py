"""Attention of the heads of a block is more alike than that of heads of different blocks."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, over_heads
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """One minus the mean divergence of pairs inside a block over that of pairs between blocks of a stage."""
    value, inside = evidence.columns("js_distance")["value"], in_blocks(evidence.layout)
    between = ~inside & ~torch.eye(len(value), dtype=torch.bool) & value.isfinite()
    if not between.any():
        raise UserError("no two blocks have heads that attend among the same tokens.")

    def closer(kept: torch.Tensor) -> float:
        means = [float(value[kept][:, kept][pairs[kept][:, kept]].mean()) for pairs in (inside, between)]
        return 1 - means[0] / means[1]

    return over_heads(evidence.layout, closer, between.any(1))


CLAIM = Claim(
    says="Heads of a layer attend more alike than heads of different layers.",
    source="Clark et al. 2019, Figure 6",
    network="BERT",
    effect=effect,
    unit="of the divergence between blocks",
    matters=0.1,
    because="a tenth less is hardly seen in their figure",
    measures=("js_distance",),
)
