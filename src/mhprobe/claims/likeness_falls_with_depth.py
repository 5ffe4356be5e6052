"""Mean canonical correlation above chance of the pairs of a block: early half of the blocks minus late half."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, halves, mean_of


@claim(
    says="Heads of a block are less alike the deeper the block.",
    source="Byun & Kim, Table 1, first half of its blocks (.52 down to .36); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"),
)
def effect(of: Evidence, svcca: Columns) -> Estimate:
    return mean_of(of.layout, svcca["value"], svcca["null"], *halves(of.layout))
