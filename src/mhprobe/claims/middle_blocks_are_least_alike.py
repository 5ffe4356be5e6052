"""Heads of middle blocks are less alike than those of the first and the last blocks."""

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, in_blocks, mean_of_pairs, third_of


def effect(evidence: Evidence) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: outer thirds of the depth minus the middle."""
    columns, pairs = evidence.columns("svcca"), in_blocks(evidence.layout)
    middle = (third_of(evidence.layout) == 1)[:, None]
    above = columns["value"] - columns["null"]
    return mean_of_pairs(evidence.layout, above, pairs & ~middle, minus=pairs & middle)


CLAIM = Claim(
    says="Likeness of heads falls to the middle of the depth and rises again.",
    source="Byun & Kim, Table 1 (.52, .36, .50 in the least alike pairs)",
    network="Swin-B, stage 3",
    effect=effect,
    unit="of canonical correlation",
    matters=0.05,
    because="a third of what the paper's own blocks differ by",
    measures=("svcca",),
)
