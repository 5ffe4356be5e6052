"""Functions of the heads that a pruning keeps, as they were in the whole model.

Voita et al., 2019, Figure 8, where heads are positional, syntactic or for rare words. Here for images, from tables of
measures on the whole model; the first rule that holds gives the label:

    positional   the argmax key is at one fixed offset in 90 % of all queries           position.positional = 1
    CLS          at least 30 % of the patches' attention goes to the class token        token_kinds.cls >= 0.3
    registers    ... to the registers                                                   token_kinds.registers >= 0.3
    diffuse      entropy is at least 95 % of that of even attention                     entropy.share >= 0.95
    local        attention distance is at most half of that of even attention           attention_distance.value
    global       it is at least 90 % of that of even attention over the whole image     the same, and .whole
    window       it is not, but at least 90 % of what the head's window allows          the same, and .uniform
    mixed        none of these, though something is known
    unknown      no table says anything about the head

Shapes: A heads of all sites.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Column = Sequence[float]  # (A,), NaN where nothing is known
USED = (
    *("position.positional", "token_kinds.cls", "token_kinds.registers", "entropy.share"),
    *("attention_distance.value", "attention_distance.uniform", "attention_distance.whole"),
)


# where the rules cut; see the file's head
THRESHOLDS = {"prefix": 0.3, "diffuse": 0.95, "local": 0.5, "global": 0.9}


def labels(columns: Mapping[str, Column], num_heads: int) -> list[str]:
    """(A,) a label per head. columns: ``<table>.<column>`` of whatever tables there are; others are not looked at."""
    rules = holds(columns, num_heads)
    known = _known(columns, num_heads)
    return [
        next((name for name, holds in rules.items() if holds[head]), "mixed" if known[head] else "unknown")
        for head in range(num_heads)
    ]


def holds(columns: Mapping[str, Column], num_heads: int) -> dict[str, list[bool]]:
    """By rule, for each head whether it holds; a head may have several. columns: as of ``labels``."""
    nothing = [math.nan] * num_heads

    def column(name: str) -> Column:
        return columns.get(name, nothing)

    nearness = _nearness(columns, num_heads, "uniform")
    # comparisons with NaN are False: a rule without its table never holds
    return {
        "positional": [value >= 1 for value in column("position.positional")],
        "CLS": [value >= THRESHOLDS["prefix"] for value in column("token_kinds.cls")],
        "registers": [value >= THRESHOLDS["prefix"] for value in column("token_kinds.registers")],
        "diffuse": [value >= THRESHOLDS["diffuse"] for value in column("entropy.share")],
        "local": [value <= THRESHOLDS["local"] for value in nearness],
        "global": [value >= THRESHOLDS["global"] for value in _nearness(columns, num_heads, "whole")],
        "window": [value >= THRESHOLDS["global"] for value in nearness],
    }


def _known(columns: Mapping[str, Column], num_heads: int) -> list[bool]:
    """True if any table says something about the head."""
    there = [columns[name] for name in USED if name in columns and not name.startswith("attention_distance")]
    there += [_nearness(columns, num_heads, reference) for reference in ("uniform", "whole")]
    return [any(not math.isnan(values[head]) for values in there) for head in range(num_heads)]


def _nearness(columns: Mapping[str, Column], num_heads: int, reference: str) -> list[float]:
    """(A,) the attention distance as a share of that of even attention, in the window or over the whole image."""
    nothing = [math.nan] * num_heads
    own, even = (columns.get(f"attention_distance.{name}", nothing) for name in ("value", reference))
    return [d / e if e else math.nan for d, e in zip(own, even, strict=True)]


LABELS = ("positional", "CLS", "registers", "diffuse", "local", "global", "window", "mixed", "unknown")


class Survivors(NamedTuple):
    """Number of heads of a group that one run kept, and the size of the group."""

    run: str
    heads: int
    by: str
    group: str
    kept: int
    of: int


def survivors(run: str, kept: Sequence[bool], groups: Mapping[str, Sequence[str]]) -> list[Survivors]:
    """Per division ("stage", "block", "label": (A,) names) and group in it, how many heads ``kept`` (A,) leaves."""
    rows = []
    for by, names in groups.items():
        for group in dict.fromkeys(names):
            of = [on for on, name in zip(kept, names, strict=True) if name == group]
            rows.append(Survivors(run, sum(kept), by, group, sum(of), len(of)))
    return rows
