"""Patches of outlying norm draw more attention than their share."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, mean_of_heads
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """Mean log2 of the attention to patches of high norm over their share of even attention."""
    columns = evidence.columns("token_kinds")
    ratio = (columns["high_norm"] / columns["uniform_high_norm"]).log2()
    if not ratio.isfinite().any():
        raise UserError("no block has patches of high norm.")
    return mean_of_heads(evidence.layout, ratio)


CLAIM = Claim(
    says="Tokens of high norm draw attention.",
    source="Darcet et al. 2024, arXiv 2309.16588",
    network="large vision transformers",
    effect=effect,
    unit="doublings of even attention",
    matters=1.0,
    because="twice its share",
    measures=("token_kinds",),
)
