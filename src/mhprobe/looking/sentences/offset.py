"""Heads that look at one fixed place beside the patch, whatever the photograph shows."""

from mhprobe.io.written import percent, rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 1
QUESTION = "which heads look at one fixed offset"
MOST = 0.5  # from which share of the patches on: by chance it is one over their number
WAYS = (("up", "down"), ("left", "right"))


def tell(facts: Facts) -> list[Sentence]:
    """Heads whose favourite offset, other than the patch itself, holds for most patches."""
    found = facts.columns("position")
    away = (found["dy"] != 0) | (found["dx"] != 0)
    made = claim("look at one offset", found["value"], found["low"], found["high"], MOST, facts.images)
    made = made._replace(sure=made.sure & away, needed=made.needed.where(away, float("nan")))
    heads = strongest(made.sure, found["value"])
    if not heads:
        return [Sentence("", (), made)]
    best = heads[0]
    chance = f"by chance {percent(found['chance'][best])}", f"the place exists for {percent(found['reach'][best])}"
    where = offset_name(int(found["dy"][best]), int(found["dx"][best]))
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} look at one fixed place beside the patch, whatever is there. Surest is "
            f"{head_name(facts.layout, best)}: the most attended patch is {where}, for "
            f"{measured(found, best, percent, *chance)} of all patches.",
            heads,
            made,
        )
    ]


def offset_name(dy: int, dx: int) -> str:
    """e.g. ``1 left``, ``2 down and 1 right``."""
    steps = [f"{rounded(abs(step))} {ways[step > 0]}" for step, ways in zip((dy, dx), WAYS, strict=True) if step]
    return " and ".join(steps) or "the patch itself"
