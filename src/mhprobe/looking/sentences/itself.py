"""Heads whose patches look at themselves."""

from mhprobe.io.written import percent
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 2
QUESTION = "which heads look at the patch itself"
MOST = 0.5


def tell(facts: Facts) -> list[Sentence]:
    """Heads whose favourite offset is the patch itself, for most patches."""
    found = facts.columns("position")
    home = (found["dy"] == 0) & (found["dx"] == 0)
    made = claim("look at the patch itself", found["value"], found["low"], found["high"], MOST, facts.images)
    made = made._replace(sure=made.sure & home, needed=made.needed.where(home, float("nan")))
    heads = strongest(made.sure, found["value"])
    if not heads:
        return [Sentence("", (), made)]
    best = heads[0]
    chance = f"by chance {percent(found['chance'][best])}"
    return [
        Sentence(
            f"In {share_of(heads, facts.layout)} a patch looks at itself most of the time, in "
            f"{head_name(facts.layout, best)} for {measured(found, best, percent, chance)} of patches.",
            heads,
            made,
        )
    ]
