"""Claims about likeness: of heads' attention, of their outputs, of their weights."""

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import RANKS, Asks, Margin, claim
from mhprobe.lab.claims.parts.estimates import (
    Estimate,
    between_blocks,
    early_and_late,
    go_together,
    in_blocks,
    mean_over_heads,
    minus_another,
    most_alike,
    over_heads,
    share_of_heads,
    third_of,
)
from mhprobe.lab.claims.parts.evidence import Columns, Evidence


@claim(
    says="Heads of a block are more alike than chance.",
    source="Byun & Kim, Table 1 (.36 to .52 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(0.1, "of canonical correlation", "a tenth of what two equal heads share"),
)
def heads_of_a_block_are_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation (SVCCA) of the pairs of each block, minus that of the same heads on other images."""
    return mean_over_heads(of.layout, svcca["value"], svcca["null"])


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
    return share_of_heads(double, ~double, unit="blocks")


@claim(
    says="Heads of a block are less alike the deeper the block.",
    source="Byun & Kim, Table 1, first half of its blocks (.52 down to .36); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(
        0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"
    ),
)
def likeness_falls_with_depth(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: early half of the blocks minus late half."""
    return mean_over_heads(of.layout, svcca["value"], svcca["null"], *early_and_late(of.layout))


@claim(
    says="Likeness of heads falls to the middle of the depth and rises again.",
    source="Byun & Kim, Table 1 (.52, .36, .50 in the least alike pairs); Swin-B, stage 3",
    figure="byun_kim/table_1",
    margin=Margin(
        0.05, "of canonical correlation", "a third of what the paper's own blocks differ by"
    ),
)
def middle_blocks_are_least_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: outer thirds of the depth minus the middle."""
    return mean_over_heads(
        of.layout, svcca["value"], svcca["null"], third_of(of.layout) != 1, third_of(of.layout) == 1
    )


@claim(
    says="Narrow heads are more alike than wide ones.",
    source="What makes each head unique?; vision transformers",
    margin=Margin(
        0.05, "of canonical correlation", "a third of what Byun & Kim's blocks differ by"
    ),
    asks=Asks(runs=("wider",)),
)
def narrow_heads_are_more_alike(of: Evidence, svcca: Columns) -> Estimate:
    """Mean canonical correlation above chance of the pairs of a block: narrow heads minus wide ones.

    Of the blocks of this network, or of this and another network whose heads are wider and whose
    claims were judged.
    """
    width = torch.tensor([site.head_dim for _, _, site in of.layout])
    if (narrow := width < width.max()).any():
        return mean_over_heads(of.layout, svcca["value"], svcca["null"], narrow, ~narrow)
    judged = [
        row
        for row in of.run("wider").rows("claims")
        if row["claim"] == "heads_of_a_block_are_alike"
    ]
    if not judged or judged[0]["effect"] is None:
        raise UserError("the network of wider heads has no number for heads_of_a_block_are_alike.")
    return minus_another(mean_over_heads(of.layout, svcca["value"], svcca["null"]), judged[0])


@claim(
    says="Heads of a layer attend more alike than heads of different layers.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(
        0.1, "of the divergence between blocks", "a tenth less is hardly seen in their figure"
    ),
)
def heads_of_a_block_attend_alike(of: Evidence, js_distance: Columns) -> Estimate:
    """One minus the mean divergence of attention of pairs in a block over that of pairs between blocks of a stage."""
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)

    def closer(kept: Tensor) -> float:
        means = [
            float(value[kept][:, kept][pairs[kept][:, kept]].mean()) for pairs in (inside, between)
        ]
        return 1 - means[0] / means[1]

    return over_heads(of.layout, closer, between.any(1))


@claim(
    says="Heads cluster by layer.",
    source="Clark et al. 2019, Figure 6; BERT",
    margin=Margin(
        0.2, "of the heads, beyond chance", "one head in five beyond those that are there by chance"
    ),
)
def clusters_follow_blocks(of: Evidence, js_distance: Columns) -> Estimate:
    """Share of heads whose nearest head, by divergence of attention, is in their block, minus that of a random head."""
    value, inside = js_distance["value"], in_blocks(of.layout)
    between = between_blocks(of.layout, value)
    compared = between | (inside & value.isfinite())

    def beyond(kept: Tensor) -> float:
        among, same_block = compared[kept][:, kept], inside[kept][:, kept]
        nearest = value[kept][:, kept].masked_fill(~among, torch.inf).argmin(1)
        hits = same_block.gather(1, nearest[:, None]).double().mean()
        return float(hits - ((same_block & among).sum(1) / among.sum(1)).mean())

    chance = float(((inside & compared).sum(1) / compared.sum(1).clamp(min=1)).mean())
    return over_heads(of.layout, beyond, between.any(1), chance=chance)


@claim(
    says="Heads that attend alike write alike.",
    source="ours, docs/papers/byun_kim.md; ViT and Swin on CIFAR-10",
    margin=RANKS,
)
def like_attention_gives_like_outputs(of: Evidence, js_distance: Columns, cka: Columns) -> Estimate:
    """Minus the rank correlation of divergence of attention and CKA of outputs, over the pairs of each block."""
    return go_together(of.layout, -js_distance["value"], cka["value"])


@claim(
    says="Training makes the outputs of heads unlike.",
    source="ours, docs/papers/unique.md; ViT and Swin on CIFAR-10",
    figure="unique/outputs",
    margin=Margin(0.1, "of linear CKA", "a tenth of what two equal heads share"),
)
def training_makes_outputs_unlike(of: Evidence, cka: Columns) -> Estimate:
    """Mean linear CKA of the outputs of two heads of a block: untrained minus trained."""
    return mean_over_heads(of.layout, of.control("cka")["value"] - cka["value"])


@claim(
    says="Circuits of heads differ from their initialisation.",
    source="What makes each head unique?; vision transformers",
    figure="unique/weights",
    margin=Margin(0.02, "of cosine", "random circuits of this width have cosines of about .01"),
)
def circuits_differ_from_initialisation(of: Evidence, weight_similarity: Columns) -> Estimate:
    """Mean size of the cosine of the value-output circuits of two heads of a block: trained minus untrained."""
    return mean_over_heads(
        of.layout,
        weight_similarity["cosine_ov"].abs() - of.control("weight_similarity")["cosine_ov"].abs(),
    )
