"""Attention to special tokens matters less to the loss than other attention does."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, mean_of_heads
from mhprobe.errors import UserError


def effect(evidence: Evidence) -> Estimate:
    """One minus the mean slope of the loss along attention to special keys over that along all others."""
    columns = evidence.columns("no_op")
    if columns["value"].isnan().all():
        raise UserError("the network has no special tokens whose slope is known.")
    return mean_of_heads(evidence.layout, 1 - columns["value"])


CLAIM = Claim(
    says="Attention to special tokens is a no-op.",
    source="Clark et al. 2019, Figure 3 (separators); here the class token, or patches of high norm",
    network="BERT",
    effect=effect,
    unit="of the slope of other attention",
    matters=0.2,
    because="a fifth less still is attention that counts",
    measures=("no_op",),
)
