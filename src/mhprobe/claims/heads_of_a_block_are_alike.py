"""Outputs of the heads of a block share more directions than chance explains."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, mean_of_pairs


def effect(evidence: Evidence) -> Estimate:
    """Mean canonical correlation (SVCCA) of the pairs of each block, minus that of the same heads on other images."""
    columns, pairs = evidence.columns("svcca"), in_blocks(evidence.layout)
    chance = float(columns["null"][pairs].nanmean())
    return mean_of_pairs(evidence.layout, columns["value"] - columns["null"], pairs, chance=chance)


CLAIM = Claim(
    says="Heads of a block are more alike than chance.",
    source="Byun & Kim, Table 1 (.36 to .52 in the least alike pairs)",
    network="Swin-B, stage 3",
    effect=effect,
    unit="of canonical correlation",
    matters=0.1,
    because="a tenth of what two equal heads share",
    measures=("svcca",),
)
