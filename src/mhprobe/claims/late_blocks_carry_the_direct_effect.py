"""Most of what heads write straight into the logits comes from the last blocks."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_heads, third_of


def effect(evidence: Evidence) -> Estimate:
    """Share that the late third of the blocks has in the size of all heads' direct contributions, minus a half."""
    size, late = evidence.columns("logit_attribution")["size"], third_of(evidence.layout) == 2
    chance = float(late.double().mean()) - 0.5

    def part(kept: torch.Tensor) -> float:
        return float(size[kept][late[kept]].sum() / size[kept].sum()) - 0.5

    return over_heads(evidence.layout, part, size.isfinite(), chance=chance)


CLAIM = Claim(
    says="Heads of the last blocks carry most of the direct effect.",
    source="Gandelsman et al. 2024, arXiv 2310.05916",
    network="CLIP",
    effect=effect,
    unit="of the direct effect, beyond a half",
    matters=0.1,
    because="three fifths are most",
    measures=("logit_attribution",),
)
