"""Masking, slow and obvious: sets of units, a table of scores, and loops. Shares nothing with src."""

from __future__ import annotations

from collections.abc import Callable

from scipy import stats

Score = Callable[[frozenset[int]], int]


def greedy(units: list[frozenset[int]], score: Score, highest: bool) -> tuple[list[int], int]:
    """Order of unit indices and the number of models scored. score: set of masked heads -> images right."""
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
    return stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
