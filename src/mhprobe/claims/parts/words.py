"""Verdicts in words: a line as each claim is known, the table and its figure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.claims.parts.claim import Claim
from mhprobe.claims.parts.estimates import Estimate, TooFewError
from mhprobe.claims.parts.judge import Verdict
from mhprobe.errors import UserError
from mhprobe.report import tables
from mhprobe.report.figures import claims as figure
from mhprobe.report.result import Result


def number(claim: Claim, effect: Estimate | UserError) -> str:
    """A claim's effect with its interval, or the reason why there is none."""
    if isinstance(effect, UserError):
        return f"{'cannot be told' if isinstance(effect, TooFewError) else 'not applicable'}, {effect}"
    ends = f"{effect.low:.3g} to {effect.high:.3g}"
    cut = f"{'up to' if claim.shape != 'more' else 'matters from'} {claim.margin.size:g}"
    return f"{effect.effect:.3g} {claim.margin.unit} (95 % {ends}; {cut}), of {effect.count} {effect.unit}"


def quote(claim: Claim, verdict: Verdict) -> str:
    """The claim itself, and its verdict for this network with the effect."""
    reason = verdict.reason if verdict.estimate is None else f"{number(claim, verdict.estimate)}."
    return f'"{claim.says}" Here: {verdict.word}, {reason}'


def result(rows: Sequence[Mapping[str, Any]]) -> Result:
    """The table and the figure of ``rows``, with the number of verdicts by word."""
    counts = Counter(str(row["verdict"]) for row in rows)
    return Result(
        tables.from_rows(rows, kind="claims"),
        figure.claims(rows),
        metrics={f"claims/{word.replace(' ', '_')}": float(count) for word, count in counts.items()},
        label="effect, positive in the claimed direction",
        larger="the claim holds more clearly",
        interval=("low", "high"),
        chance="chance",
        about="Which findings of the literature hold for this network?",
        drawn="claims",
        columns={
            "matters": "the smallest effect that matters",
            "p_holm": "p after Holm over all claims",
            "power": "chance to hold here if the effect were twice the smallest that matters, before Holm",
            "needed": "how many would tell",
            "learned": "no: it holds for the untrained twin as well",
        },
    )


def rows(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], of_twin: Mapping[str, Verdict]
) -> list[dict[str, Any]]:
    """A row of the table per claim."""
    return [_row(name, claim, verdicts[name], of_twin.get(name)) for name, claim in claims.items()]


def _row(name: str, claim: Claim, verdict: Verdict, of_twin: Verdict | None) -> dict[str, Any]:
    estimate, untrained = verdict.estimate, "" if of_twin is None else of_twin.word
    return {
        "claim": name,
        "says": claim.says,
        "verdict": verdict.word,
        **{end: getattr(estimate, end, math.nan) for end in ("effect", "low", "high", "chance")},
        "matters": claim.margin.size,
        "shape": claim.shape,
        "unit": claim.margin.unit,
        **{name: getattr(verdict, name) for name in ("p", "p_holm", "power")},
        "over": "" if estimate is None else estimate.unit,
        "count": 0 if estimate is None else estimate.count,
        "needed": verdict.needed or "",
        "untrained": untrained,
        "learned": "no" if verdict.word == untrained == "holds" else "",
        "reason": verdict.reason,
        "source": claim.source,
    }
