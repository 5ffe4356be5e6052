"""Interleaved timing: a, b, a, b, ... so that whatever else the machine does hits both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """ratio: median over rounds of time(numerator) / time(denominator); low, high: its quartiles."""

    what: str
    ratio: float
    low: float
    high: float
    rounds: int
    limit: str = ""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(
    what: str, numerator: Callable[[], object], denominator: Callable[[], object], rounds: int, limit: str = ""
) -> Ratio:
    """Time both in turn, after one warm-up each; the ratio is taken within each round."""
    numerator(), denominator()
    ratios = []
    for number in range(rounds):
        if number % 2:
            below, above = seconds(denominator), seconds(numerator)
        else:
            above, below = seconds(numerator), seconds(denominator)
        ratios.append(above / below)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Ratio(what, middle, low, high, rounds, limit)
