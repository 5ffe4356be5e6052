"""Verdicts on claims: does the interval of the effect lie beyond the margin, inside it, or across?

The margins cut the number line into pieces. A claim's p is the smallest level at which its interval
lies in one piece: the two-sided p of the nearest cut. A verdict is wrong only if an interval misses
the truth (the partitioning principle: Finner & Strassburger, 2002, Annals of Statistics 30:1194),
and Holm's correction over all claims keeps the chance of any wrong verdict at 5 %.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from mhprobe.errors import UserError
from mhprobe.lab.claims.parts.claim import Claim
from mhprobe.lab.claims.parts.estimates import Estimate, TooFewError
from mhprobe.stats.significance import LEVEL, holm, significant

MOST = 10_000  # times as many heads or images; an effect that needs more counts as on the cut
Word = Literal["holds", "contradicted", "too small to matter", "cannot be told", "not applicable"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    p, p_holm: of the piece that the effect lies in. power: chance that the claim would hold here,
    before Holm, if the effect were twice its margin (no effect, for "at most" and "none"). needed:
    number of heads or images that would decide it; None if the effect lies on the cut. reason:
    message where there is no estimate.
    """

    word: Word
    estimate: Estimate | None = None
    p: float = math.nan
    p_holm: float = math.nan
    power: float = math.nan
    needed: int | None = None
    reason: str = ""


def p_of(claim: Claim, estimate: Estimate, times: float = 1.0) -> float:
    """Smallest level at which the interval of the effect lies in one piece, with ``times`` as many images."""
    low, high = claim.bounds
    if estimate.effect >= high:
        return estimate.p(high, times)
    return (
        estimate.p(low, times)
        if estimate.effect <= low
        else max(estimate.p(low, times), estimate.p(high, times))
    )


def judge(
    claims: Mapping[str, Claim], estimates: Mapping[str, Estimate | UserError], tests: int = 0
) -> dict[str, Verdict]:
    """A verdict on each claim, by its name.

    estimates: of each claim, or the error instead. tests: number of claims of Holm's correction, if
    larger.
    """
    p = {
        name: p_of(claims[name], effect)
        for name, effect in estimates.items()
        if isinstance(effect, Estimate)
    }
    tests = max(tests, len(p))
    corrected = holm(
        torch.tensor([*p.values(), *[1.0] * (tests - len(p))], dtype=torch.float64)
    ).tolist()
    p_holm = dict(zip(p, corrected, strict=False))
    return {
        name: _verdict(claim, estimates[name], p_holm.get(name, math.nan), tests)
        for name, claim in claims.items()
    }


def _verdict(claim: Claim, estimate: Estimate | UserError, p_holm: float, tests: int) -> Verdict:
    if isinstance(estimate, TooFewError):
        return Verdict("cannot be told", needed=estimate.needed, reason=str(estimate))
    if isinstance(estimate, UserError):
        return Verdict("not applicable", reason=str(estimate))
    p, power = p_of(claim, estimate), _power(claim, estimate)
    if significant(p_holm):
        return Verdict(_piece(claim, estimate), estimate, p, p_holm, power)
    return Verdict(
        "cannot be told",
        estimate,
        p,
        p_holm,
        power,
        estimate.needed or _needed(claim, estimate, tests),
    )


def _power(claim: Claim, estimate: Estimate) -> float:
    low, high = claim.bounds
    if claim.shape == "none":
        return max(0.0, estimate.power(low, 0.0) + estimate.power(high, 0.0) - 1)
    return estimate.power(high, 2 * high if claim.shape == "more" else 0.0)


def _needed(claim: Claim, estimate: Estimate, tests: int) -> int | None:
    """Fewest heads or images that would decide the same effect at Holm's first step, the hardest."""
    counts = range(estimate.count, MOST * estimate.count)

    def decides(count: int) -> bool:
        return p_of(claim, estimate, count / estimate.count) < LEVEL / tests

    place = bisect.bisect_left(counts, True, key=decides)
    return None if place == len(counts) else counts[place]


def _piece(claim: Claim, estimate: Estimate) -> Word:
    low, high = claim.bounds
    if low < estimate.effect < high:
        return "holds" if claim.shape == "none" else "too small to matter"
    return "contradicted" if claim.shape == "none" or estimate.effect <= low else "holds"
