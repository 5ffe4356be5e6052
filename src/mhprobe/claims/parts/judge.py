"""Verdicts on claims: does the interval lie beyond what would matter, inside it, or across?

The number line is cut where an effect begins to matter. A claim's p is the smallest level at which its interval lies in
one piece: the two-sided p of the cut that is nearest. So a verdict is wrong only if an interval misses the truth, in
whatever piece that is (the partitioning principle: Finner & Strassburger, 2002, Annals of Statistics 30:1194), and
Holm's correction over all claims that were asked keeps the chance of any wrong verdict at 5 %.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from mhprobe.claims.parts.claim import Claim
from mhprobe.claims.parts.estimates import LEVEL, Estimate, TooFewError
from mhprobe.errors import UserError
from mhprobe.stats.significance import holm

MOST = 10_000  # times as many heads or images; an effect that needs more lies on the cut
Word = Literal["holds", "contradicted", "too small to matter", "cannot be told", "not applicable"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    word: holds, contradicted, too small to matter, cannot be told or not applicable. estimate: None where there is
    none. p, p_holm: that the interval is wrong about the piece that the effect lies in. power: the chance that the
    claim would hold here, before Holm, if the effect were twice the smallest that matters; of "at most" and "none", if
    there were no effect. needed: how many heads or images would tell, where it cannot be told; None if the effect lies
    on the cut. reason: why there is no estimate.
    """

    word: Word
    estimate: Estimate | None = None
    p: float = math.nan
    p_holm: float = math.nan
    power: float = math.nan
    needed: int | None = None
    reason: str = ""


def p_of(claim: Claim, estimate: Estimate, times: float = 1.0) -> float:
    """Smallest level at which the interval of the effect lies in one piece, from so many ``times`` as many images."""
    low, high = claim.bounds
    if estimate.effect >= high:
        return estimate.p(high, times)
    return estimate.p(low, times) if estimate.effect <= low else max(estimate.p(low, times), estimate.p(high, times))


def judge(claims: Mapping[str, Claim], found: Mapping[str, Estimate | UserError], asked: int = 0) -> dict[str, Verdict]:
    """A verdict on each claim, by its name.

    found: the estimate of each, or why there is none. asked: how many claims Holm's correction is over, if they are
    more; those that are not here are taken for untold.
    """
    told = {name: each for name, each in found.items() if isinstance(each, Estimate)}
    asked = max(asked, len(told))
    p = [p_of(claims[name], each) for name, each in told.items()] + [1.0] * (asked - len(told))
    adjusted = dict(zip(told, holm(torch.tensor(p, dtype=torch.float64)).tolist(), strict=False))
    return {name: _verdict(claim, found[name], adjusted.get(name, math.nan), asked) for name, claim in claims.items()}


def _verdict(claim: Claim, estimate: Estimate | UserError, p_holm: float, asked: int) -> Verdict:
    if isinstance(estimate, TooFewError):
        return Verdict("cannot be told", needed=estimate.needed, reason=str(estimate))
    if isinstance(estimate, UserError):
        return Verdict("not applicable", reason=str(estimate))
    p, power = p_of(claim, estimate), _power(claim, estimate)
    if p_holm < LEVEL:
        return Verdict(_piece(claim, estimate), estimate, p, p_holm, power)
    return Verdict("cannot be told", estimate, p, p_holm, power, estimate.needed or _needed(claim, estimate, asked))


def _power(claim: Claim, estimate: Estimate) -> float:
    low, high = claim.bounds
    if claim.shape == "none":
        return max(0.0, estimate.power(low, 0.0) + estimate.power(high, 0.0) - 1)
    return estimate.power(high, 2 * high if claim.shape == "more" else 0.0)


def _needed(claim: Claim, estimate: Estimate, asked: int) -> int | None:
    """Fewest heads or images from which the same effect would be told at Holm's first step, the hardest."""
    counts = range(estimate.count, MOST * estimate.count)

    def told(count: int) -> bool:
        return p_of(claim, estimate, count / estimate.count) < LEVEL / asked

    place = bisect.bisect_left(counts, True, key=told)
    return None if place == len(counts) else counts[place]


def _piece(claim: Claim, estimate: Estimate) -> Word:
    low, high = claim.bounds
    if low < estimate.effect < high:
        return "holds" if claim.shape == "none" else "too small to matter"
    return "contradicted" if claim.shape == "none" or estimate.effect <= low else "holds"
