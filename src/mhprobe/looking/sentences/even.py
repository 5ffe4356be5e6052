"""Heads that look everywhere alike."""

import functools

from mhprobe.io.written import rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 8
QUESTION = "which heads look everywhere alike"
NEARLY = 0.97  # of the entropy of even attention


def tell(facts: Facts) -> list[Sentence]:
    """Heads whose entropy is at least .97 of the largest that there can be."""
    found = facts.columns("entropy")
    value, low, high, most = (found[name] for name in ("value", "low", "high", "uniform"))
    made = claim("look nearly everywhere alike", value, low, high, NEARLY * most, facts.images)
    heads = strongest(made.sure, value / most)
    if not heads:
        return [Sentence("", (), made)]
    best, three = heads[0], functools.partial(rounded, digits=3)
    limit = f"even attention {three(most[best])}"
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} look nearly everywhere alike. Most even is "
            f"{head_name(facts.layout, best)}, with an entropy of {measured(found, best, three, limit)} nats.",
            heads,
            made,
        )
    ]
