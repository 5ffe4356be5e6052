"""Claims of Voita et al., 2019, arXiv 1905.09418: functions of heads, and which of them pruning keeps."""

import torch

from mhprobe.claims.parts.claim import POINT, RANKS, Margin, claim
from mhprobe.claims.parts.estimates import Estimate, go_together, of_accuracy, over_heads, share
from mhprobe.claims.parts.evidence import Columns, Evidence
from mhprobe.errors import UserError
from mhprobe.stats.survival import holds


@claim(
    says="Confident heads are the relevant ones.",
    source="Voita et al. 2019, Figures 1 and 2; a translation model",
    figure="voita/figure_1",
    margin=RANKS,
)
def confidence_follows_relevance(of: Evidence, confidence: Columns, lrp_relevance: Columns) -> Estimate:
    """Rank correlation of confidence and relevance over the heads of a block."""
    return go_together(of.layout, confidence["value"], lrp_relevance["value"])


@claim(
    says="A pruned network is better than the same heads trained from scratch.",
    source="Voita et al. 2019, Table 2; a translation model",
    margin=POINT,
)
def pruned_beats_from_scratch(of: Evidence) -> Estimate:
    """Accuracy of a pruned network minus that of the same heads trained from scratch."""
    pruned, scratch = (of.run(name).outcomes() for name in ("pruned", "scratch"))
    if pruned is None or scratch is None or pruned.images != scratch.images:
        raise UserError("the two runs do not say which of the same test images they classify rightly.")
    return of_accuracy(pruned.right, scratch.right)


@claim(
    says="Relevance follows what pruning keeps.",
    source="Voita et al. 2019 (gates; here an order of importance); a translation model",
    margin=RANKS,
)
def relevant_heads_stay(of: Evidence, lrp_relevance: Columns) -> Estimate:
    """Rank correlation, over the heads of a block, of relevance and how long the order of importance keeps a head."""
    return go_together(of.layout, lrp_relevance["value"], -of.path("importance")[0].sum(0).double())


@claim(
    says="Some heads are positional: one offset has their largest weight for 90 % of the queries.",
    source="Voita et al. 2019, section 4; a translation model",
    figure="voita/positional",
    margin=Margin(0.05, "of the heads", "one head in twenty; the paper has several in each layer"),
)
def some_heads_are_positional(of: Evidence, position: Columns) -> Estimate:
    """Share of heads whose largest weight is at one offset for 90 % of the queries."""
    return share(position["low"] >= 0.9, position["high"] >= 0.9, images=position["images"])


@claim(
    says="Heads with a named function stay longest.",
    source="Voita et al. 2019, Figure 8 (gates; here an order of importance); a translation model",
    margin=Margin(0.1, "of the order", "a tenth of all heads between them and the others"),
)
def specialised_heads_stay(
    of: Evidence, position: Columns, token_kinds: Columns, attention_distance: Columns
) -> Estimate:
    """Place in the order of importance, 0 to 1: mean of positional, class-token and local heads minus the others'."""
    tables = {"position": position, "token_kinds": token_kinds, "attention_distance": attention_distance}
    columns = {
        f"{name}.{key}": values.tolist()
        for name, table in tables.items()
        for key, values in table.items()
        if values.dim() == 1
    }
    rules = holds(columns, of.layout.num_heads)
    named = torch.tensor([rules[name] for name in ("positional", "CLS", "registers", "local")]).any(0)
    if named.sum() < 2 or (~named).sum() < 2:
        raise UserError(f"{int(named.sum())} of {len(named)} heads have a named function, expected some and not all.")
    place = 1 - of.path("importance")[0].sum(0) / len(named)
    return over_heads(of.layout, lambda kept: float(place[kept][named[kept]].mean() - place[kept][~named[kept]].mean()))
