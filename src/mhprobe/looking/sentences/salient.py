"""Heads that look at what is salient, by masks; chosen on one half of the photographs, judged on the other."""

import torch

from mhprobe.errors import UserError
from mhprobe.io.written import percent
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 7
QUESTION = "which heads look at what is salient"


def tell(facts: Facts) -> list[Sentence]:
    """Heads whose most attended patch is on the object more often than chance; held out for the best of them."""
    found = facts.columns("object_attention")
    made = claim("look at what is salient", found["value"], found["low"], found["high"], found["chance"], facts.images)
    chosen = torch.nonzero(~found["held_out"].isnan()).flatten().tolist()
    if not chosen:
        raise UserError("one half of the photographs is empty; give more of them")
    best = chosen[0]
    held = {name: found[f"held_out{end}"] for name, end in (("value", ""), ("low", "_low"), ("high", "_high"))}
    chance = found["chance"][best]
    if not held["low"][best] > chance:
        return [Sentence("", (), made)]
    heads = tuple(dict.fromkeys([best, *strongest(made.sure, found["value"])]))
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} look at what is salient more often than chance. "
            f"{head_name(facts.layout, best).capitalize()}, the best on one half of the photographs, does so on the "
            f"other half for {measured(held, best, percent, f'by chance {percent(chance)}')} of patches.",
            heads,
            made,
        )
    ]
