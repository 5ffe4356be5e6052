"""Masking, slow and obvious: sets of units, a table of scores, and loops.

Shares nothing with src.
"""

from __future__ import annotations

from collections.abc import Callable

from scipy import stats

Score = Callable[[frozenset[int]], int]


def greedy(units: list[frozenset[int]], score: Score, highest: bool) -> tuple[list[int], int]:
    """Order of unit indices and the number of models scored.

    score: set of masked heads -> images right.
    """
    order: list[int] = []
    evaluations = 0
    while len(order) < len(units):
        best_unit, best_score = None, None
        for unit in range(len(units)):
            if unit in order:
                continue
            masked = frozenset().union(*(units[u] for u in [*order, unit]))
            value = score(masked)
            evaluations += 1
            if best_score is None or (value > best_score if highest else value < best_score):
                best_unit, best_score = unit, value
        order.append(best_unit)
    return order, evaluations


def wilson(correct: int, images: int) -> tuple[float, float]:
    interval = stats.binomtest(correct, images).proportion_ci(0.95, method="wilson")
    return interval.low, interval.high


def t_interval(values: list[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean."""
    return stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )


def by_score(
    units: list[frozenset[int]], score: Callable[[frozenset[int]], list[float]], every: int
) -> list[int]:
    """Order of unit indices, lowest sum of scores first.

    score: set of masked heads -> a number per head.
    """
    order: list[int] = []
    while len(order) < len(units):
        if len(order) % every == 0:
            masked = frozenset().union(*(units[u] for u in order))
            numbers = score(masked)
        left = [u for u in range(len(units)) if u not in order]
        order.append(sorted(left, key=lambda u: sum(numbers[h] for h in units[u]))[0])
    return order


def beam(units: list[frozenset[int]], score: Score, width: int, steps: int) -> list[int]:
    """The way to the best set; every way is scored along its whole length, every time."""

    def at(way: tuple[int, ...]) -> int:
        return score(frozenset().union(*(units[u] for u in way)))

    def area(way: tuple[int, ...]) -> int:
        return sum(at(way[: k + 1]) for k in range(len(way)))

    ways: list[tuple[int, ...]] = [()]
    for _ in range(steps):
        by_set: dict[frozenset[int], tuple[int, ...]] = {}
        for way in ways:
            for u in range(len(units)):
                if u in way:
                    continue
                longer, members = (*way, u), frozenset((*way, u))
                other = by_set.get(members)
                # the better way to the same set: more right on the way, then the earlier in index
                # order
                if other is None or (-area(longer[:-1]), longer[:-1]) < (
                    -area(other[:-1]),
                    other[:-1],
                ):
                    by_set[members] = longer
        ways = sorted(by_set.values(), key=lambda way: (-at(way), -area(way), way))[:width]
    return list(ways[0])


def interactions(
    units: list[frozenset[int]], loss: Callable[[frozenset[int]], float], among: int
) -> list[int]:
    base = loss(frozenset())
    own = [loss(unit) - base for unit in units]
    few = sorted(range(len(units)), key=lambda u: own[u])[:among]
    pair = {
        frozenset((a, b)): loss(units[a] | units[b]) - base - own[a] - own[b]
        for a in few
        for b in few
        if a != b
    }
    order: list[int] = []
    while len(order) < len(units):
        left = [u for u in range(len(units)) if u not in order]
        rise = [own[u] + sum(pair.get(frozenset((u, v)), 0.0) for v in order) for u in left]
        order.append(left[min(range(len(left)), key=lambda i: rise[i])])
    return order
