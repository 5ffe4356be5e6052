"""Differences between the network and an untrained one of the same architecture."""

import functools

from torch import Tensor

from mhprobe.io.written import rounded
from mhprobe.looking.facts import TWIN, Facts
from mhprobe.looking.sentences import Sentence, head_name, measured, share_of, strongest

ORDER = 9
QUESTION = "what makes the network unlike an untrained one"
NAMES = {
    "attention_distance": "how far they look (pixels)",
    "entropy": "how wide they spread (nats)",
    "sinks": "how much rests on one token",
    "position": "how often they look at one offset",
}


def tell(facts: Facts) -> list[Sentence]:
    """The measure by which most heads' intervals lie outside the range of all heads of the untrained network."""
    outside = {name: _outside(facts, name) for name in NAMES}
    name = max(outside, key=lambda each: int(outside[each].sum()))
    found, twin = facts.columns(name), facts.columns(name, of_twin=True)["value"]
    lowest, highest = float(twin.min()), float(twin.max())
    heads = strongest(outside[name], (found["value"] - (lowest + highest) / 2).abs())
    if not heads:
        return []
    best, three = heads[0], functools.partial(rounded, digits=3)
    counts = ", ".join(f"{int(outside[each].sum())} by {NAMES[each]}" for each in NAMES if each != name)
    return [
        Sentence(
            f"{share_of(heads, facts.layout)} are unlike all heads of an untrained network by {NAMES[name]}: untrained "
            f"ones lie from {three(lowest)} to {three(highest)} (on {min(TWIN, facts.images)} of the photographs), "
            f"{head_name(facts.layout, best)} at {measured(found, best, three)}. Of the other measures: {counts}.",
            heads,
        )
    ]


def _outside(facts: Facts, name: str) -> Tensor:
    """(A,) bool: the head's whole interval lies beyond every head of the untrained network."""
    found, twin = facts.columns(name), facts.columns(name, of_twin=True)["value"]
    return (found["low"] > twin.max()) | (found["high"] < twin.min())
