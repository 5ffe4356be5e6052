"""Claims about importance: what it goes with, and what it tells."""

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import BY_CHOICE, MOSTLY, RANKS, Asks, Margin, claim
from mhprobe.lab.claims.parts.estimates import (
    Estimate,
    go_together,
    goes_with_cost,
    most_alike,
    over_heads,
    rank_correlation,
)
from mhprobe.lab.claims.parts.evidence import Columns, Evidence
from mhprobe.measures.parts.functions import holds


def kept_by_importance(of: Evidence) -> Tensor:
    """(A,) minus the number of steps for which the order of importance has each head closed, a mean over its draws.

    What one draw chooses otherwise than the next is noise of each head, so the jackknife over heads
    counts it.
    """
    return -of.path("importance").sum(1).double().mean(0)


@claim(
    says="Gradient importance tells which heads cost most.",
    source="Michel et al. 2019; a translation model, BERT",
    margin=RANKS,
    asks=BY_CHOICE,
)
def importance_predicts_cost(of: Evidence, ablation_delta: Columns) -> Estimate:
    """Rank correlation of how long the order of importance keeps a head and rise of the loss without it, in blocks.

    Validation images choose the order, test images give the cost.
    """
    return goes_with_cost(of.layout, kept_by_importance(of), ablation_delta)


@claim(
    says="Gradient importance is mostly the norm of what a head writes.",
    source="ours, docs/headbench.md; ViT and Swin on CIFAR-10",
    margin=MOSTLY,
)
def importance_is_mostly_output_norm(
    of: Evidence, gate_importance: Columns, write_norm: Columns
) -> Estimate:
    """Rank correlation of gradient importance and norm of the writes over the heads of a block, minus a half."""
    return go_together(of.layout, gate_importance["value"], write_norm["value"]).beyond(0.5)


@claim(
    says="Importance of heads is the same on another data set.",
    source="Michel et al. 2019, Figure 2 (accuracy; here gradients); a translation model, BERT",
    margin=MOSTLY,
    asks=Asks(second=True),
)
def importance_agrees_between_data_sets(of: Evidence, gate_importance: Columns) -> Estimate:
    """Rank correlation of gradient importance on two data sets over the heads of a block, minus a half."""
    return go_together(
        of.layout, gate_importance["value"], of.second("gate_importance")["value"]
    ).beyond(0.5)


@claim(
    says="Which heads are important settles early in training.",
    source="Michel et al. 2019, Figure 5 and section 6; a translation model",
    margin=MOSTLY,
    asks=Asks(runs=("training",)),
)
def importance_settles_early(of: Evidence) -> Estimate:
    """Rank correlation over heads of importance after a quarter of the training and at its end, minus a half."""
    table = of.run("training").tables.get("settling_agreement")
    rows = [] if table is None else table.dicts()
    last = max((int(row["epoch_b"]) for row in rows), default=0)
    early = [row for row in rows if row["epoch_b"] == last and 4 * (row["epoch_a"] + 1) <= last + 1]
    if not early:
        raise UserError(
            "the training scored no heads in its first quarter; give one with the callback "
            "settling."
        )
    latest = max(early, key=lambda row: row["epoch_a"])
    return rank_correlation(float(latest["spearman"]), of.layout.num_heads).beyond(0.5)


@claim(
    says="Confident heads are the relevant ones.",
    source="Voita et al. 2019, Figures 1 and 2; a translation model",
    figure="voita/figure_1",
    margin=RANKS,
)
def confidence_follows_relevance(
    of: Evidence, confidence: Columns, lrp_relevance: Columns
) -> Estimate:
    """Rank correlation of confidence and relevance over the heads of a block."""
    return go_together(of.layout, confidence["value"], lrp_relevance["value"])


@claim(
    says="Relevance follows what pruning keeps.",
    source="Voita et al. 2019 (gates; here an order of importance); a translation model",
    margin=RANKS,
    asks=BY_CHOICE,
)
def relevant_heads_stay(of: Evidence, lrp_relevance: Columns) -> Estimate:
    """Rank correlation, over the heads of a block, of relevance and how long the order of importance keeps a head."""
    return go_together(of.layout, lrp_relevance["value"], kept_by_importance(of))


@claim(
    says="Heads with a named function stay longest.",
    source="Voita et al. 2019, Figure 8 (gates; here an order of importance); a translation model",
    margin=Margin(0.1, "of the order", "a tenth of all heads between them and the others"),
    asks=BY_CHOICE,
)
def specialised_heads_stay(
    of: Evidence, position: Columns, token_kinds: Columns, attention_distance: Columns
) -> Estimate:
    """Place in the order of importance, 0 to 1: mean of positional, class-token and local heads minus the others'."""
    tables = {
        "position": position,
        "token_kinds": token_kinds,
        "attention_distance": attention_distance,
    }
    columns = {
        f"{name}.{key}": values.tolist()
        for name, table in tables.items()
        for key, values in table.items()
        if values.dim() == 1
    }
    rules = holds(columns, of.layout.num_heads)
    named = torch.tensor([rules[name] for name in ("positional", "CLS", "registers", "local")]).any(
        0
    )
    if named.sum() < 2 or (~named).sum() < 2:
        raise UserError(
            f"{int(named.sum())} of {len(named)} heads have a named function, expected some and "
            "not all."
        )
    place = 1 + kept_by_importance(of) / len(named)
    return over_heads(
        of.layout,
        lambda kept: float(place[kept][named[kept]].mean() - place[kept][~named[kept]].mean()),
    )


@claim(
    says="Likeness does not tell which heads can go.",
    source="ours, docs/papers/byun_kim.md, the open question; ViT and Swin on CIFAR-10",
    margin=RANKS,
    shape="none",
)
def similarity_does_not_tell_redundancy(
    of: Evidence, svcca: Columns, ablation_delta: Columns
) -> Estimate:
    """Rank correlation, over the heads of a block, of likeness to the nearest head and rise of the loss without it."""
    return goes_with_cost(of.layout, most_alike(of.layout, svcca["value"]), ablation_delta)
