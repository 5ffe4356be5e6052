"""Mean canonical correlation (SVCCA) of the pairs of each block, minus that of the same heads on other images."""

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, mean_of


@claim(
    says="Heads of a block are more alike than chance.",
    source="Byun & Kim, Table 1 (.36 to .52 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.1, "of canonical correlation", "a tenth of what two equal heads share"),
)
def effect(of: Evidence, svcca: Columns) -> Estimate:
    return mean_of(of.layout, svcca["value"], svcca["null"])
