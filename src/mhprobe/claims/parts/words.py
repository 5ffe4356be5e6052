"""Verdicts in words: a line as each claim is known, the table, the sentences on the screen."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.claims.parts.claim import Claim
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.judge import Verdict
from mhprobe.errors import UserError
from mhprobe.report import tables
from mhprobe.report.figures import claims as figure
from mhprobe.report.result import Result


def line(name: str, claim: Claim, found: Estimate | UserError) -> str:
    """A claim's number, before all claims are judged together."""
    if isinstance(found, UserError):
        return f"{name}: not applicable, {found}"
    ends = f"{found.low:.3g} to {found.high:.3g}"
    cut = f"{'up to' if claim.shape != 'more' else 'matters from'} {claim.matters:g}"
    return f"{name}: {found.effect:.3g} {claim.unit} (95 % {ends}; {cut}), of {found.count} {found.unit}"


def result(claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], of_twin: Mapping[str, Verdict]) -> Result:
    """The table and the figure of verdicts, with their number by word."""
    rows = [_row(name, claim, verdicts[name], of_twin.get(name)) for name, claim in claims.items()]
    counts = Counter(str(row["verdict"]) for row in rows)
    return Result(
        tables.from_rows(rows, kind="claims"),
        figure.draw(rows),
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


def _row(name: str, claim: Claim, verdict: Verdict, of_twin: Verdict | None) -> dict[str, Any]:
    found = verdict.estimate
    numbers = (math.nan,) * 4 if found is None else (found.effect, found.low, found.high, found.chance)
    untrained = "" if of_twin is None else of_twin.word
    return {
        "claim": name,
        "says": claim.says,
        "verdict": verdict.word,
        **dict(zip(("effect", "low", "high", "chance"), numbers, strict=True)),
        "matters": claim.matters,
        "shape": claim.shape,
        "unit": claim.unit,
        "p": verdict.p,
        "p_holm": verdict.p_holm,
        "power": verdict.power,
        "over": "" if found is None else found.unit,
        "count": 0 if found is None else found.count,
        "needed": verdict.needed or "",
        "untrained": untrained,
        "learned": "no" if verdict.word == untrained == "holds" else "",
        "reason": verdict.reason,
        "source": f"{claim.source}; {claim.network}",
    }


def sentences(verdicts: Mapping[str, Verdict], of_twin: Mapping[str, Verdict]) -> list[str]:
    """Two sentences: how many claims got each verdict, and what the untrained twin says."""
    counts = Counter(verdict.word for verdict in verdicts.values())
    asked = len(verdicts)
    parts = [
        f"{counts['contradicted']} {_are(counts['contradicted'])} contradicted",
        f"{counts['too small to matter']} {_are(counts['too small to matter'])} too small to matter",
        f"{counts['cannot be told']} cannot be told",
        f"{counts['not applicable']} {_are(counts['not applicable'])} not applicable",
    ]
    first = f"{counts['holds']} of {asked} claims hold, {', '.join(parts[:-1])} and {parts[-1]}."
    both = [name for name, verdict in verdicts.items() if verdict.word == "holds" and _holds(of_twin.get(name))]
    if not of_twin:
        return [first, "There is no untrained twin to compare with."]
    return [first, f"Of those that hold, {len(both)} hold for an untrained network as well{_named(both)}."]


def _holds(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.word == "holds"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _named(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""
