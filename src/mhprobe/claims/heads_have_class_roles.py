"""Heads speak for one class far more than for classes on average."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, share


def effect(evidence: Evidence) -> Estimate:
    """Share of heads whose direct effect on one class's images is significant, and thrice that on the average class."""
    columns = evidence.columns("logit_attribution")
    own, p = columns["own"], columns["own_p"]
    top = own.nan_to_num(-torch.inf).argmax(1, keepdim=True)
    far = own.gather(1, top).squeeze(1) >= 3 * own.abs().nanmean(1)
    return share(far & (p.gather(1, top).squeeze(1) < 0.05), far, images=columns["images"])


CLAIM = Claim(
    says="Some heads have a class as their role.",
    source="Gandelsman et al. 2024, arXiv 2310.05916",
    network="CLIP",
    effect=effect,
    unit="of the heads",
    matters=0.2,
    because="one head in five",
    measures=("logit_attribution",),
)
