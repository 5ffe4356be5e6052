"""Heads that rest on one token of the image, and whether they do nothing by it."""

import torch

from mhprobe.io.written import percent, rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 3
QUESTION = "which heads rest on a sink"
MOST = 0.5  # of all attention


def tell(facts: Facts) -> list[Sentence]:
    """Heads of which one token gets most of all attention; no-ops write less than a quarter of the median head."""
    found = facts.columns("sinks")
    made = claim("rest on one token", found["value"], found["low"], found["high"], MOST, facts.images)
    made = made._replace(sure=made.sure & (found["role"] > 0))
    heads = strongest(made.sure, found["value"])
    if not heads:
        return [Sentence("", (), made)]
    best, chosen = heads[0], torch.tensor(heads)
    silent = int((found["role"][chosen] == 1).sum())
    at_class = found["class_token"][best].item()
    on = " (the class token)" if at_class >= 0.5 else "" if at_class != at_class else " (a patch or a register)"
    even = f"even attention would give {percent(found['uniform'][best])}"
    idle = "is a no-op that writes" if silent == 1 else "are no-ops that write"
    does = f"{silent or 'None'} of them {idle} next to nothing; the others hand out what is there to all patches"
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} rest on one token, a sink. {head_name(facts.layout, best).capitalize()} "
            f"gives it{on} {measured(found, best, percent, even)} of all attention, and writes "
            f"{rounded(found['write'][best])} of the stream's length. {does}.",
            heads,
            made,
        )
    ]
