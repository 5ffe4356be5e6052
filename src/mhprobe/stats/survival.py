"""Functions of the heads that a pruning keeps, from tables of measures on the whole model.

Voita et al., 2019, Figure 8 (positional, syntactic, rare words), for images. A head has every
function whose rule holds; a label is the first of them:

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
THRESHOLDS = {
    "prefix": 0.3,
    "rare": 2.0,
    "object": 1.5,
    "diffuse": 0.95,
    "local": 0.5,
    "global": 0.9,
}


def labels(columns: Mapping[str, Column], num_heads: int) -> list[str]:
    return [names[0] for names in functions(columns, num_heads)]


def functions(columns: Mapping[str, Column], num_heads: int) -> list[tuple[str, ...]]:
    """(A,) rules that hold for each head, in the order of LABELS; "mixed" or "unknown" if none.

    columns: as USED.
    """
    rules, judged = holds(columns, num_heads), _judged(columns, num_heads).values()
    return [
        tuple(name for name, of_heads in rules.items() if of_heads[head])
        or (("unknown",) if all(math.isnan(numbers[head]) for numbers in judged) else ("mixed",))
        for head in range(num_heads)
    ]


def holds(
    columns: Mapping[str, Column],
    num_heads: int,
    thresholds: Mapping[str, float] = MappingProxyType(THRESHOLDS),
) -> dict[str, list[bool]]:
    """(A,) bool by rule: True for heads for which it holds, of which a head may have several."""
    at_least = {
        "positional": 1.0,
        **thresholds,
        "CLS": thresholds["prefix"],
        "registers": thresholds["prefix"],
    }
    at_least["window"] = thresholds["global"]
    rules = {  # comparisons with NaN are False: a rule without its table never holds
        rule: [
            value <= thresholds["local"] if rule == "local" else value >= at_least[rule]
            for value in numbers
        ]
        for rule, numbers in _judged(columns, num_heads).items()
    }
    # without windows the two would be the same
    rules["window"] = [
        here and not whole for here, whole in zip(rules["window"], rules["global"], strict=True)
    ]
    return rules


def _judged(columns: Mapping[str, Column], num_heads: int) -> dict[str, Column]:
    """(A,) numbers by rule that it compares with its threshold; NaN where a table is missing."""

    def column(name: str) -> Column:
        return columns.get(name, [math.nan] * num_heads)

    def ratio(table: str, to: str) -> Column:
        pairs = zip(column(f"{table}.value"), column(f"{table}.{to}"), strict=True)
        return [value / other if other else math.nan for value, other in pairs]

    return {
        "positional": column("position.positional"),
        "CLS": column("token_kinds.cls"),
        "registers": column("token_kinds.registers"),
        "rare": ratio("rarity", "chance"),
        "object": ratio("object_attention", "chance"),
        "diffuse": column("entropy.share"),
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


def survivors(
    run: str, kept: Sequence[bool], groups: Mapping[str, Sequence[tuple[str, ...]]]
) -> list[Survivors]:
    """Number of heads that ``kept`` (A,) leaves of each group.

    groups: by division ("stage" ...), (A,) of each head.
    """
    rows = []
    for by, names in groups.items():
        for group in dict.fromkeys(name for of_head in names for name in of_head):
            of = [on for on, of_head in zip(kept, names, strict=True) if group in of_head]
            rows.append(Survivors(run, sum(kept), by, group, sum(of), len(of)))
    return rows
