"""A special token draws much of the attention."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, mean_of_heads
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """Mean attention from patches to the class token, minus its share of even attention."""
    columns = evidence.columns("token_kinds")
    if columns["cls"].isnan().all():
        raise UserError("the network has no class token that patches attend to.")
    chance = float(columns["uniform_cls"].nanmean())
    return mean_of_heads(evidence.layout, columns["cls"] - columns["uniform_cls"], chance)


CLAIM = Claim(
    says="A special token draws far more attention than its share.",
    source="Clark et al. 2019, Figure 2 (separators); here the class token",
    network="BERT",
    effect=effect,
    unit="of the patches' attention",
    matters=0.05,
    because="in BERT it is over half; a twentieth is what three patches of 64 get",
    measures=("token_kinds",),
)
