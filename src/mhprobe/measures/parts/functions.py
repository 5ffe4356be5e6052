"""Functions of heads: their names, the numbers and limits that define them, and the sources.

``look``, claims, the papers' pages and sweeps read this table. A head has every function whose
number reaches the limit. Voita et al., 2019, Figure 8 (positional, syntactic, rare words) is the
model; their functions are those of words, these of patches. Offsets, sinks and no-ops give no label.

Papers name few limits. "ours" marks those that no paper gives. Of two that were in use, the one
that a source has was kept (positional: nine queries of ten), else the one of the published tables.
It needs no torch.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

Column = Sequence[float]  # (A,), NaN where nothing is known


class Function(NamedTuple):
    """A name for heads of which a number reaches a limit.

    measure, column: whose table holds the number; over: column of the same table that it is divided
    by, if any. at_most: the number must not exceed the limit; otherwise it must not be below.
    """

    measure: str
    column: str
    limit: float
    says: str
    source: str
    over: str = ""
    at_most: bool = False

    def reached(self, number: float, limit: float | None = None) -> bool:
        """Return True if the number is on the function's side of the limit; False for NaN."""
        limit = self.limit if limit is None else limit
        return number <= limit if self.at_most else number >= limit


RAGHU = "Raghu et al. 2021, arXiv 2108.08810, after; the limit is ours"
FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "positional": Function(
            "position",
            "value",
            0.9,
            "the largest weight is at one offset from the query",
            "Voita et al. 2019, arXiv 1905.09418, section 4",
        ),
        "CLS": Function("token_kinds", "cls", 0.3, "attention goes to the class token", "ours"),
        "registers": Function("token_kinds", "registers", 0.3, "it goes to the registers", "ours"),
        "rare": Function(
            "rarity",
            "value",
            2.0,
            "the largest weight is on the image's rarest patch",
            "Voita et al. 2019, after; the limit is ours",
            over="chance",
        ),
        "object": Function(
            "object_attention",
            "value",
            1.5,
            "the largest weight is on an object",
            "ours",
            over="chance",
        ),
        "diffuse": Function(
            "entropy", "share", 0.95, "attention is nearly even, by its entropy", "ours"
        ),
        "local": Function(
            "attention_distance",
            "value",
            0.5,
            "it looks near by, compared with even attention",
            RAGHU,
            over="uniform",
            at_most=True,
        ),
        "global": Function(
            "attention_distance",
            "value",
            0.9,
            "it looks as far as even attention to the whole image",
            RAGHU,
            over="whole",
        ),
        # of a head that is not global
        "window": Function(
            "attention_distance",
            "value",
            0.9,
            "it looks as far as its window allows",
            RAGHU,
            over="uniform",
        ),
        # the border of a small grid leaves few offsets to nine queries of ten: one to the left exists
        # for seven of eight queries of a row of eight
        "offset": Function(
            "position",
            "value",
            0.9,
            "the largest weight is at one offset, of the queries from which it exists",
            "Voita et al. 2019, section 4, whose sentences have hardly a border",
            over="reach",
        ),
        # in so many images nine queries of ten give one token half of their attention
        "sink": Function(
            "sinks",
            "sink",
            0.5,
            "one token draws nearly all queries",
            "Xiao et al. 2024, arXiv 2309.17453, after; the limits are ours",
        ),
        # of a sink: its column ``role`` is 1
        "no-op": Function(
            "sinks",
            "write",
            0.25,
            "it rests on a sink and writes less than a share of the median head's",
            "ours",
            at_most=True,
        ),
    }
)
UNLABELLED = ("offset", "sink", "no-op")
LABELLED = tuple(name for name in FUNCTIONS if name not in UNLABELLED)
LABELS = (*LABELLED, "mixed", "unknown")
USED = tuple(
    dict.fromkeys(
        f"{of.measure}.{column}"
        for name, of in FUNCTIONS.items()
        if name in LABELLED
        for column in (of.column, of.over)
        if column
    )
)


def labels(columns: Mapping[str, Column], num_heads: int) -> list[str]:
    """(A,) first function of each head, in the order of LABELS."""
    return [names[0] for names in functions(columns, num_heads)]


def functions(columns: Mapping[str, Column], num_heads: int) -> list[tuple[str, ...]]:
    """(A,) functions of each head, in the order of LABELS; "mixed" or "unknown" if it has none.

    columns: as USED. A head is unknown if no table has a number for it.
    """
    rules = holds(columns, num_heads)
    known = [_numbers(FUNCTIONS[name], columns, num_heads) for name in LABELLED]
    names = []
    for head in range(num_heads):
        has = tuple(name for name, of_heads in rules.items() if of_heads[head])
        nothing = all(math.isnan(numbers[head]) for numbers in known)
        names.append(has or (("unknown",) if nothing else ("mixed",)))
    return names


def holds(
    columns: Mapping[str, Column],
    num_heads: int,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, list[bool]]:
    """(A,) bool by function: whether each head has it. A head may have several.

    columns: as USED; without its table nobody has a function. limits: in place of the table's.
    """
    rules = {}
    for name in LABELLED:
        function = FUNCTIONS[name]
        numbers = _numbers(function, columns, num_heads)
        rules[name] = [function.reached(number, limits.get(name)) for number in numbers]
    # without windows the two would be the same
    rules["window"] = [
        here and not whole for here, whole in zip(rules["window"], rules["global"], strict=True)
    ]
    return rules


def _numbers(function: Function, columns: Mapping[str, Column], num_heads: int) -> Column:
    """(A,) numbers that are compared with the limit; NaN where a table is missing."""
    nothing = [math.nan] * num_heads
    values = columns.get(f"{function.measure}.{function.column}", nothing)
    if not function.over:
        return values
    others = columns.get(f"{function.measure}.{function.over}", nothing)
    return [
        value / other if other else math.nan for value, other in zip(values, others, strict=True)
    ]
