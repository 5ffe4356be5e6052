"""In some blocks two heads compute nearly the same."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, most_alike, share


def effect(evidence: Evidence) -> Estimate:
    """Share of blocks with two heads whose canonical correlation is above .95."""
    largest = most_alike(evidence.columns("svcca")["value"], in_blocks(evidence.layout)).nan_to_num(0)
    double = torch.tensor([bool((part > 0.95).any()) for part in evidence.layout.split(largest)])
    return share(double, double, unit="blocks")


CLAIM = Claim(
    says="In some blocks two heads compute nearly the same.",
    source="Byun & Kim, Table 1 (.9999 in 5 of 18 blocks)",
    network="Swin-B, stage 3",
    effect=effect,
    unit="of the blocks",
    matters=0.1,
    because="one block in ten; the paper has more than one in four",
    measures=("svcca",),
)
