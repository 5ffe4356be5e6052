"""Mean canonical correlation above chance of the pairs of a block: outer thirds of the depth minus the middle."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of, third_of


@claim(
    says="Likeness of heads falls to the middle of the depth and rises again.",
    source="Byun & Kim, Table 1 (.52, .36, .50 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"),
)
def effect(of: Evidence, svcca: Columns) -> Estimate:
    return mean_of(of.layout, svcca["value"], svcca["null"], third_of(of.layout) != 1, third_of(of.layout) == 1)
