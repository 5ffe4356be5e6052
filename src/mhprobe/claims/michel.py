"""Claims of Michel, Levy & Neubig, 2019, arXiv 1905.10650: heads that can go, and how importance tells them."""

import torch

from mhprobe.claims.parts.claim import MOSTLY, POINT, RANKS, Margin, claim
from mhprobe.claims.parts.estimates import (
    Estimate,
    go_together,
    goes_with_cost,
    in_blocks,
    over_images,
    rank_correlation,
    share,
)
from mhprobe.claims.parts.evidence import Columns, Evidence, at_share, gained, loss, loss_at, without_thirds
from mhprobe.errors import UserError


@claim(
    says="A fifth of the heads goes for less than a point.",
    source="Michel et al. 2019, Figure 3, no noticeable loss; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
    shape="at most",
)
def a_fifth_of_the_heads_goes(of: Evidence) -> Estimate:
    """Accuracy lost without the fifth of the heads that validation images call least important."""
    return loss_at(of, "importance", 0.2)


@claim(
    says="Importance of heads is the same on another data set.",
    source="Michel et al. 2019, Figure 2 (accuracy; here gradients); a translation model, BERT",
    margin=MOSTLY,
)
def importance_agrees_between_data_sets(of: Evidence, gate_importance: Columns) -> Estimate:
    """Rank correlation of gradient importance on two data sets over the heads of a block, minus a half."""
    return go_together(of.layout, gate_importance["value"], of.second("gate_importance")["value"]).beyond(0.5)


@claim(
    says="The order of gradient importance beats random orders.",
    source="Michel et al. 2019, Figure 3; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
)
def importance_beats_random(of: Evidence) -> Estimate:
    """Accuracy in the order of importance minus that of random orders, mean over three shares of the heads."""
    by_score, drawn = of.path("importance"), of.path("random")
    masks = [torch.cat([at_share(by_score, part), at_share(drawn, part)]) for part in (0.2, 0.4, 0.6)]
    right = of.right(torch.cat(masks)).double().unflatten(0, (len(masks), 1 + len(drawn)))
    return over_images((right[:, :1] - right[:, 1:]).mean(0))


@claim(
    says="Gradient importance tells which heads cost most.",
    source="Michel et al. 2019; a translation model, BERT",
    margin=RANKS,
)
def importance_predicts_cost(of: Evidence, ablation_delta: Columns) -> Estimate:
    """Rank correlation of how long the order of importance keeps a head and rise of the loss without it, in blocks.

    Validation images choose the order, test images give the cost.
    """
    return goes_with_cost(of.layout, -of.path("importance")[0].sum(0).double(), ablation_delta)


@claim(
    says="Which heads are important settles early in training.",
    source="Michel et al. 2019, Figure 5 and section 6; a translation model",
    margin=MOSTLY,
)
def importance_settles_early(of: Evidence) -> Estimate:
    """Rank correlation over heads of importance after a quarter of the training and at its end, minus a half."""
    table = of.run("training").tables.get("settling_agreement")
    rows = [] if table is None else [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    last = max((int(row["epoch_b"]) for row in rows), default=0)
    early = [row for row in rows if row["epoch_b"] == last and 4 * (row["epoch_a"] + 1) <= last + 1]
    if not early:
        raise UserError("the training scored no heads in its first quarter; give one with +callback=settling.")
    latest = max(early, key=lambda row: row["epoch_a"])
    return rank_correlation(float(latest["spearman"]), of.layout.num_heads).beyond(0.5)


@claim(
    says="Most heads can be switched off alone for less than a point of accuracy.",
    source="Michel et al. 2019, Table 1; a translation model, BERT",
    figure="michel/table_1",
    margin=Margin(0.1, "of the heads, beyond a half", "three heads of five are most"),
)
def most_heads_can_go(of: Evidence, ablation_delta: Columns) -> Estimate:
    """Share of heads whose removal alone costs less than a point, minus a half."""
    return share(
        ablation_delta["drop_high"] < 0.01, ablation_delta["drop_low"] < 0.01, images=ablation_delta["images"]
    ).beyond(0.5)


@claim(
    says="In the middle one of all blocks, by its need of heads, one head is enough.",
    source="Michel et al. 2019, Tables 2 and 3; a translation model, BERT",
    margin=POINT,
    shape="at most",
)
def one_head_is_enough(of: Evidence) -> Estimate:
    """Accuracy lost when the block in the middle, by accuracy with its best head alone, keeps that head only.

    Validation images choose each block's head, and the block; of an even number the one that loses more.
    """
    alone = in_blocks(of.layout)  # (A, A): the others of each head's block
    accuracy = of.right(alone, "validation").double().mean(1)
    spans = [of.layout.span(site) for site, each in enumerate(of.layout.sites) if each.num_heads > 1]
    if not spans:
        raise UserError("every block has one head.")
    best = sorted((span.start + int(accuracy[span].argmax()) for span in spans), key=lambda head: float(accuracy[head]))
    return loss(of, alone[best[(len(best) - 1) // 2]])


@claim(
    says="One third of the depth needs its heads more than the others do.",
    source="Michel et al. 2019, Figure 4 (attention between encoder and decoder); a translation model",
    margin=Margin(0.03, "of accuracy", "three points are beyond what several single heads cost"),
)
def one_kind_of_block_is_needed_most(of: Evidence) -> Estimate:
    """Accuracy without the heads of the other thirds minus that without the third that validation images call worst."""
    masks = without_thirds(of)
    worst = int(of.right(masks, "validation").double().mean(1).argmin())
    others = [third for third in range(3) if third != worst]
    return gained(of, masks[others], masks[[worst]])


@claim(
    says="Two fifths of the heads go for less than a point.",
    source="Michel et al. 2019, Figure 3, its upper end; a translation model, BERT",
    figure="michel/figure_3",
    margin=POINT,
    shape="at most",
)
def two_fifths_of_the_heads_go(of: Evidence) -> Estimate:
    """Accuracy lost without the two fifths of the heads that validation images call least important."""
    return loss_at(of, "importance", 0.4)
