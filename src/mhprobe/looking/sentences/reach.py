"""Heads that look near, and heads that look as far as even attention would."""

from mhprobe.io.written import rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence, claim, head_name, measured, share_of, strongest

ORDER = 5
QUESTION = "which heads are local and which global"
LOCAL = 0.5  # of the distance of even attention, at most


def tell(facts: Facts) -> list[Sentence]:
    """Heads whose mean attention distance is at most half that of even attention; of the others those that reach it."""
    found = facts.columns("attention_distance")
    value, low, high, even = (found[name] for name in ("value", "low", "high", "uniform"))
    near = claim("be local", -value, -high, -low, -LOCAL * even, facts.images)
    heads = strongest(near.sure, -value)
    if not heads:
        return [Sentence("", (), near)]
    best, far = heads[0], strongest(high >= even, value)
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} are local: they look less than half as far as even attention. "
            f"{head_name(facts.layout, best).capitalize()} looks nearest, "
            f"{measured(found, best, rounded, f'even attention {rounded(even[best])}')} pixels away on average. "
            f"{len(far)} are global: they look as far as even attention, or farther.",
            heads,
            near,
        )
    ]
