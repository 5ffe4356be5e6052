"""Place in the order of importance, 0 to 1: mean of positional, class-token and local heads minus the others'."""

import torch

from mhprobe.claims.parts import Columns, Estimate, Evidence, Margin, claim, over_heads
from mhprobe.errors import UserError
from mhprobe.stats.survival import holds


@claim(
    says="Heads with a named function stay longest.",
    source="Voita et al. 2019, Figure 8 (gates; here an order of importance); a translation model",
    margin=Margin(0.1, "of the order", "a tenth of all heads between them and the others"),
)
def effect(of: Evidence, position: Columns, token_kinds: Columns, attention_distance: Columns) -> Estimate:
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
