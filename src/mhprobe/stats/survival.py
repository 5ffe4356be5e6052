"""Numbers of heads that a pruning keeps in each group (Voita et al., 2019, Figure 8)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


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
