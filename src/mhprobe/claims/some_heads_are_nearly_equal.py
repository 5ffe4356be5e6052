"""Share of blocks with two heads whose canonical correlation is above .95."""

import torch

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, most_alike, share


@claim(
    says="In some blocks two heads compute nearly the same.",
    source="Byun & Kim, Table 1 (.9999 in 5 of 18 blocks); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.1, "of the blocks", "one block in ten; the paper has more than one in four"),
)
def effect(of: Evidence, svcca: Columns) -> Estimate:
    largest = most_alike(of.layout, svcca["value"]).nan_to_num(0)
    double = torch.tensor([bool((part > 0.95).any()) for part in of.layout.split(largest)])
    return share(double, double, unit="blocks")
