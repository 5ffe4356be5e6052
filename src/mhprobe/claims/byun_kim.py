"""Claims of Byun & Kim, "What does the multi-head do?": likeness of heads, covering range, masking by index."""

import torch

from mhprobe.claims.parts.claim import POINT, Margin, claim
from mhprobe.claims.parts.estimates import Estimate, halves, late_minus_early, mean_of, most_alike, share, third_of
from mhprobe.claims.parts.evidence import Columns, Evidence, at_share, gained, loss, loss_at


@claim(
    says="By the best indices a third of the heads goes for less than a point.",
    source="Byun & Kim, Figure 8 (flat to step 4 of 12); Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
    shape="at most",
)
def a_third_goes_by_index(of: Evidence) -> Estimate:
    """Accuracy lost without a third of the heads, by whole indices that validation images choose."""
    return loss_at(of, "head_max", 1 / 3)


@claim(
    says="The covering range of heads grows with depth.",
    source="Byun & Kim, covering range; Swin-B and ViT",
    figure="byun_kim/covering_range",
    margin=Margin(0.1, "of the range of even attention", "less is under a patch in a grid of eight by eight"),
)
def covering_range_grows_with_depth(of: Evidence, attention_range: Columns) -> Estimate:
    """Radius of half of the mass around the favourite key, over that of even attention: late minus early blocks."""
    return late_minus_early(of.layout, attention_range["value"] / attention_range["uniform"])


@claim(
    says="Heads of a block are more alike than chance.",
    source="Byun & Kim, Table 1 (.36 to .52 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.1, "of canonical correlation", "a tenth of what two equal heads share"),
)
def heads_of_a_block_are_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation (SVCCA) of the pairs of each block, minus that of the same heads on other images."""
    return mean_of(of.layout, svcca["value"], svcca["null"])


@claim(
    says="By the best indices heads cost less than by the best whole layers.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
)
def index_beats_whole_layers(of: Evidence) -> Estimate:
    """Accuracy by indices minus that by layers, mean over the steps by layer, at the nearest numbers of heads."""
    by_index, by_layer = (of.path(name)[0] for name in ("head_max", "layer_max"))
    steps = by_layer[1:-1]
    nearest = (by_index.sum(1)[None] - steps.sum(1)[:, None]).abs().argmin(1)
    return gained(of, by_index[nearest], steps)


@claim(
    says="Heads of a block are less alike the deeper the block.",
    source="Byun & Kim, Table 1, first half of its blocks (.52 down to .36); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"),
)
def likeness_falls_with_depth(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: early half of the blocks minus late half."""
    return mean_of(of.layout, svcca["value"], svcca["null"], *halves(of.layout))


@claim(
    says="Likeness of heads falls to the middle of the depth and rises again.",
    source="Byun & Kim, Table 1 (.52, .36, .50 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"),
)
def middle_blocks_are_least_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: outer thirds of the depth minus the middle."""
    return mean_of(of.layout, svcca["value"], svcca["null"], third_of(of.layout) != 1, third_of(of.layout) == 1)


@claim(
    says="In some blocks two heads compute nearly the same.",
    source="Byun & Kim, Table 1 (.9999 in 5 of 18 blocks); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.1, "of the blocks", "one block in ten; the paper has more than one in four"),
)
def some_heads_are_nearly_equal(of: Evidence, svcca: Columns) -> Estimate:
    """Share of blocks with two heads whose canonical correlation is above .95."""
    largest = most_alike(of.layout, svcca["value"]).nan_to_num(0)
    double = torch.tensor([bool((part > 0.95).any()) for part in of.layout.split(largest)])
    return share(double, double, unit="blocks")


@claim(
    says="One head of every block, the best index, goes for less than a point.",
    source="Byun & Kim, Figure 8; Swin-B and ViT",
    figure="byun_kim/figure_8",
    margin=POINT,
    shape="at most",
)
def some_heads_go_within_noise(of: Evidence) -> Estimate:
    """Accuracy lost without the head of one index in every block, which validation images choose."""
    return loss(of, of.path("head_max")[0, 1])


@claim(
    says="A sixth of the heads by the worst indices costs more than by the best.",
    source="Byun & Kim, Figure 9; Swin-B and ViT",
    figure="byun_kim/figure_9",
    margin=POINT,
)
def the_worst_index_falls_first(of: Evidence) -> Estimate:
    """Accuracy without a sixth of the heads: best indices minus worst indices, both chosen on validation images."""
    return gained(of, *(at_share(of.path(name), 1 / 6) for name in ("head_max", "head_min")))
