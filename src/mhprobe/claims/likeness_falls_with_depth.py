"""Heads of late blocks are less alike than heads of early ones."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, halves, in_blocks, mean_of_pairs


def effect(evidence: Evidence) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: early half of the blocks minus late half."""
    columns, pairs = evidence.columns("svcca"), in_blocks(evidence.layout)
    early, late = halves(evidence.layout)
    above = columns["value"] - columns["null"]
    return mean_of_pairs(evidence.layout, above, pairs & early[:, None], minus=pairs & late[:, None])


CLAIM = Claim(
    says="Heads of a block are less alike the deeper the block.",
    source="Byun & Kim, Table 1, first half of its blocks (.52 down to .36)",
    network="Swin-B, stage 3",
    effect=effect,
    unit="of canonical correlation",
    matters=0.05,
    because="a third of what the paper's own blocks differ by",
    measures=("svcca",),
)
