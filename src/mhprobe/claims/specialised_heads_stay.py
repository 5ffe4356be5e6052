"""Heads with a function that can be named are pruned later than others."""

import torch

from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate, over_heads
from mhprobe.errors import UserError
from mhprobe.stats.survival import holds

MEASURES = ("position", "token_kinds", "attention_distance")


def effect(evidence: Evidence) -> Estimate:
    """Place in the order of importance, 0 to 1: mean of positional, class-token and local heads minus the others'."""
    layout = evidence.layout
    tables = {name: evidence.columns(name) for name in MEASURES}
    columns = {
        f"{name}.{key}": each.tolist() for name, of in tables.items() for key, each in of.items() if each.dim() == 1
    }
    rules = holds(columns, layout.num_heads)
    named = torch.tensor([rules[name] for name in ("positional", "CLS", "registers", "local")]).any(0)
    if named.sum() < 2 or (~named).sum() < 2:
        raise UserError(
            f"{int(named.sum())} of {len(named)} heads have a named function, expected some with and some without."
        )
    place = 1 - evidence.path("importance")[0].sum(0) / layout.num_heads
    return over_heads(layout, lambda kept: float(place[kept][named[kept]].mean() - place[kept][~named[kept]].mean()))


CLAIM = Claim(
    says="Heads with a named function stay longest.",
    source="Voita et al. 2019, Figure 8 (gates; here an order of importance)",
    network="a translation model",
    effect=effect,
    unit="of the order",
    matters=0.1,
    because="a tenth of all heads between them and the others",
    measures=("position", "token_kinds", "attention_distance"),
)
