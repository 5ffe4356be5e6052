"""Functions of the heads that a pruning keeps, as they were in the whole model.

Voita et al., 2019, Figure 8, where heads are positional, syntactic or for rare words. Here for images, from tables of
measures on the whole model. A head has every function whose rule holds; where it may have one only, it is the first:

    positional   the argmax key is at one fixed offset in 90 % of all queries           position.positional = 1
    CLS          at least 30 % of the patches' attention goes to the class token        token_kinds.cls >= 0.3
    registers    ... to the registers                                                   token_kinds.registers >= 0.3
    rare         the argmax key is the image's rarest patch twice as often as chance    rarity.value, .chance
    object       it is on an object 1.5 times as often as chance                        object_attention.value, .chance
    diffuse      entropy is at least 95 % of that of even attention                     entropy.share >= 0.95
    local        attention distance is at most half of that of even attention           attention_distance.value
    global       it is at least 90 % of that of even attention over the whole image     the same, and .whole
    window       it is not, but at least 90 % of what the head's window allows          the same, and .uniform
    mixed        none of these, though something is known
    unknown      no table says anything about the head
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

Column = Sequence[float]  # (A,), NaN where nothing is known
USED = (
    *("position.positional", "token_kinds.cls", "token_kinds.registers", "entropy.share"),
    *("rarity.value", "rarity.chance", "object_attention.value", "object_attention.chance"),
    *("attention_distance.value", "attention_distance.uniform", "attention_distance.whole"),
)


# where the rules cut; see the file's head
THRESHOLDS = {"prefix": 0.3, "rare": 2.0, "object": 1.5, "diffuse": 0.95, "local": 0.5, "global": 0.9}


def labels(columns: Mapping[str, Column], num_heads: int) -> list[str]:
    """(A,) a label per head, the first of its ``functions``. columns: as there."""
    return [names[0] for names in functions(columns, num_heads)]


def functions(columns: Mapping[str, Column], num_heads: int) -> list[tuple[str, ...]]:
    """(A,) names of the rules that hold for each head, in the order of LABELS; "mixed" or "unknown" where none does.

    columns: ``<table>.<column>`` of whatever tables there are; others are not looked at.
    """
    rules, judged = holds(columns, num_heads), _judged(columns, num_heads).values()
    return [
        tuple(name for name, of_heads in rules.items() if of_heads[head])
        or (("unknown",) if all(math.isnan(numbers[head]) for numbers in judged) else ("mixed",))
        for head in range(num_heads)
    ]


def holds(
    columns: Mapping[str, Column], num_heads: int, thresholds: Mapping[str, float] = MappingProxyType(THRESHOLDS)
) -> dict[str, list[bool]]:
    """By rule, for each head whether it holds; a head may have several. columns: as of ``functions``."""
    at_least = {"positional": 1.0, **thresholds, "CLS": thresholds["prefix"], "registers": thresholds["prefix"]}
    at_least["window"] = thresholds["global"]
    # comparisons with NaN are False: a rule without its table never holds
    found = {
        rule: [value <= thresholds["local"] if rule == "local" else value >= at_least[rule] for value in numbers]
        for rule, numbers in _judged(columns, num_heads).items()
    }
    # without windows the two would be the same
    found["window"] = [here and not whole for here, whole in zip(found["window"], found["global"], strict=True)]
    return found


def _judged(columns: Mapping[str, Column], num_heads: int) -> dict[str, Column]:
    """By rule (A,) the number that it judges; NaN where a table is missing."""
    nothing = [math.nan] * num_heads

    def ratio(table: str, to: str) -> Column:
        values, reference = (columns.get(f"{table}.{name}", nothing) for name in ("value", to))
        return [value / other if other else math.nan for value, other in zip(values, reference, strict=True)]

    return {
        "positional": columns.get("position.positional", nothing),
        "CLS": columns.get("token_kinds.cls", nothing),
        "registers": columns.get("token_kinds.registers", nothing),
        "rare": ratio("rarity", "chance"),
        "object": ratio("object_attention", "chance"),
        "diffuse": columns.get("entropy.share", nothing),
        "local": ratio("attention_distance", "uniform"),
        "global": ratio("attention_distance", "whole"),
        "window": ratio("attention_distance", "uniform"),
    }


LABELS = (*holds({}, 0), "mixed", "unknown")


class Survivors(NamedTuple):
    """Number of heads of a group that one run kept, and the size of the group."""

    run: str
    heads: int
    by: str
    group: str
    kept: int
    of: int


def survivors(run: str, kept: Sequence[bool], groups: Mapping[str, Sequence[tuple[str, ...]]]) -> list[Survivors]:
    """Per division ("stage", "block", "label") and group in it, how many heads ``kept`` (A,) leaves.

    groups: by division (A,) the groups of each head, of which it may have several.
    """
    rows = []
    for by, names in groups.items():
        for group in dict.fromkeys(name for of_head in names for name in of_head):
            of = [on for on, of_head in zip(kept, names, strict=True) if group in of_head]
            rows.append(Survivors(run, sum(kept), by, group, sum(of), len(of)))
    return rows
