"""Interleaved timing: a, b, a, b, ... so that whatever else the machine does hits both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PATIENCE = 40  # seconds for the rounds of one row, where it has had three
FEWEST = 3


@dataclass(frozen=True)
class Ratio:
    """One row.

    what: stays the same from run to run, so that runs can be compared; note: what was found
    besides.

    ratio: median over rounds of time(numerator) / time(denominator), or a number. low, high: its
    quartiles.
    rounds: n. limit: the aim, ">= 2" or "<= 2"; it says which direction is better.
    """

    what: str
    ratio: float
    low: float
    high: float
    rounds: int
    limit: str = ""
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether the aim is not reached; one that is inside the spread is reached."""
        sign, _, aim = self.limit.partition(" ")
        return bool(self.limit) and (
            self.high < float(aim) if sign == ">=" else self.low > float(aim)
        )


def single(what: str, number: float, limit: str = "", note: str = "") -> Ratio:
    """A number that was counted, not timed: it has no spread."""
    return Ratio(what, number, number, number, 1, limit, note)


def from_rounds(what: str, ratios: Sequence[float], limit: str = "", note: str = "") -> Ratio:
    """The row of ratios that were taken within rounds."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return Ratio(what, middle, low, high, len(ratios), limit, note)


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def compare(
    what: str,
    numerator: Callable[[], object],
    denominator: Callable[[], object],
    rounds: int,
    limit: str = "",
    note: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Time both in turn, after one warm-up each (none for a single round); the ratio is taken within each round.

    rounds: at most; a slow machine stops after PATIENCE seconds, and the row says how many it made.
    """
    if rounds > 1:
        numerator(), denominator()
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < rounds and (len(ratios) < FEWEST or time.perf_counter() - start < PATIENCE):
        if len(ratios) % 2:
            below, above = seconds(denominator, clock), seconds(numerator, clock)
        else:
            above, below = seconds(numerator, clock), seconds(denominator, clock)
        ratios.append(above / below)
    return from_rounds(what, ratios, limit, note)
