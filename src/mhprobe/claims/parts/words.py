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


def number(claim: Claim, found: Estimate | UserError) -> str:
    """A claim's effect with its interval, or why there is none."""
    if isinstance(found, UserError):
        return f"{'cannot be told' if isinstance(found, TooFewError) else 'not applicable'}, {found}"
    ends = f"{found.low:.3g} to {found.high:.3g}"
    cut = f"{'up to' if claim.shape != 'more' else 'matters from'} {claim.margin.size:g}"
    return f"{found.effect:.3g} {claim.margin.unit} (95 % {ends}; {cut}), of {found.count} {found.unit}"


def quote(claim: Claim, verdict: Verdict) -> str:
    """The claim itself, and its verdict for this network with the effect."""
    told = verdict.reason if verdict.estimate is None else f"{number(claim, verdict.estimate)}."
    return f'"{claim.says}" Here: {verdict.word}, {told}'


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
    found = verdict.estimate
    numbers = (math.nan,) * 4 if found is None else (found.effect, found.low, found.high, found.chance)
    untrained = "" if of_twin is None else of_twin.word
    return {
        "claim": name,
        "says": claim.says,
        "verdict": verdict.word,
        **dict(zip(("effect", "low", "high", "chance"), numbers, strict=True)),
        "matters": claim.margin.size,
        "shape": claim.shape,
        "unit": claim.margin.unit,
        "p": verdict.p,
        "p_holm": verdict.p_holm,
        "power": verdict.power,
        "over": "" if found is None else found.unit,
        "count": 0 if found is None else found.count,
        "needed": verdict.needed or "",
        "untrained": untrained,
        "learned": "no" if verdict.word == untrained == "holds" else "",
        "reason": verdict.reason,
        "source": claim.source,
    }
