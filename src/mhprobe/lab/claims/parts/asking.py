"""Claims about a network: estimate each, judge all together, and give the verdicts in words, a table and a figure."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.plan import Question
from mhprobe.io.progress import announce
from mhprobe.lab.claims.parts.claim import Claim, all_claims
from mhprobe.lab.claims.parts.estimates import Estimate, TooFewError
from mhprobe.lab.claims.parts.evidence import Counts, Evidence
from mhprobe.lab.claims.parts.judge import Verdict, judge
from mhprobe.report import tables
from mhprobe.report.figures import claims as figure
from mhprobe.report.result import Result
from mhprobe.report.runs.words import findings

log = logging.getLogger(__name__)


def verdicts_on(material: Material, claims: Mapping[str, Claim], **parts: Any) -> dict[str, Result]:
    """Verdicts on claims, of the network and of its untrained twin.

    parts: of ``Evidence``. A collective.
    """
    evidence = Evidence(material, **parts)
    verdicts = ask(claims, evidence, say=material.first)
    if evidence.measured.measurements.broken is not None:
        raise evidence.measured.measurements.broken
    rows = verdict_rows(
        claims, verdicts, {} if evidence.twin is None else ask(claims, evidence.twin)
    )
    if material.first:
        announce(findings(rows))
    return {"claims": result_of_claims(rows)}


def ask(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Verdict]:
    """Return the verdict on each claim.

    say: a line for each as soon as it is estimated. A collective.
    """
    return judge(claims, estimates(claims, evidence, say))


def estimates(
    claims: Mapping[str, Claim], evidence: Evidence, say: bool = False
) -> dict[str, Estimate | UserError]:
    """Return the estimate of each claim, or the error instead; claims of measures come first: they share passes."""
    effects: dict[str, Estimate | UserError] = {}
    for name, claim in sorted(claims.items(), key=lambda item: not item[1].measures):
        try:
            effects[name] = claim.estimate(evidence)
        except ranks.LeftAlone:
            raise
        except UserError as error:
            effects[name] = error
        if say:
            log.info("%s: %s", name, number(claim, effects[name]))
    return effects


def with_verdicts(question: Question, paper: str) -> Question:
    """Return the question of a figure of a paper, with verdicts on the figure's claims at the end of its captions.

    Claims about curves need complete ones, chosen on validation images. Holm's correction is over
    the paper's claims.
    """
    of_paper = {
        name: claim for name, claim in all_claims().items() if claim.figure.startswith(f"{paper}/")
    }
    claims = {
        name: claim
        for name, claim in of_paper.items()
        if claim.figure == f"{paper}/{question.name}"
    }

    def ask(material: Material) -> Mapping[str, Result]:
        results, masking = question.ask(material), material.masking
        searched = (
            masking is not None
            and masking.select_on == "validation"
            and masking.steps is masking.step is None
        )
        here = {name: claim for name, claim in claims.items() if claim.measures or searched}
        sizes = material.data.sizes  # of all images, as the figure is
        counts = Counts(measures=sizes["test"], maps=0, control=sizes["test"], choice=sizes["val"])
        evidence = Evidence(material, {}, counts)
        verdicts = judge(here, estimates(here, evidence), tests=len(of_paper))
        text = " ".join(quote(here[name], verdict) for name, verdict in verdicts.items())
        text += f" (Holm's correction is over the {len(of_paper)} claims of this paper's figures.)"
        quotes = {
            name: part._replace(caption=f"{part.how_to_read}\n\n{text}")
            for name, part in results.items()
        }
        return quotes if here else results

    return (
        replace(question, ask=ask, made_from=f"{question.made_from} {' '.join(of_paper)}")
        if claims
        else question
    )


def number(claim: Claim, effect: Estimate | UserError) -> str:
    """A claim's effect with its interval, or the reason why there is none."""
    if isinstance(effect, UserError):
        return (
            f"{'cannot be told' if isinstance(effect, TooFewError) else 'not applicable'}, {effect}"
        )
    ends = f"{effect.low:.3g} to {effect.high:.3g}"
    cut = f"{'up to' if claim.shape != 'more' else 'matters from'} {claim.margin.size:g}"
    return f"{effect.effect:.3g} {claim.margin.unit} (95 % {ends}; {cut}), of {effect.count} {effect.unit}"


def quote(claim: Claim, verdict: Verdict) -> str:
    """The claim itself, and its verdict for this network with the effect."""
    reason = verdict.reason if verdict.estimate is None else f"{number(claim, verdict.estimate)}."
    return f'"{claim.says}" Here: {verdict.word}, {reason}'


def result_of_claims(rows: Sequence[Mapping[str, Any]]) -> Result:
    """The table and the figure of ``rows``, with the number of verdicts by word."""
    counts = Counter(str(row["verdict"]) for row in rows)
    return Result(
        tables.from_rows(rows, kind="claims"),
        figure.claims(rows),
        metrics={
            f"claims/{word.replace(' ', '_')}": float(count) for word, count in counts.items()
        },
        label="effect, positive in the claimed direction",
        larger="the claim holds more clearly",
        about="Which findings of the literature hold for this network?",
        drawn="claims",
        columns={
            "matters": "the smallest effect that matters",
            "p_holm": "p after Holm over all claims",
            "power": "chance to hold here if the effect were twice the smallest that matters, before Holm",
            "least": "of a share: how many surely have the property",
            "most": "of a share: how many may have it",
            "needed": "how many would tell",
            "learned": "no: it holds for the untrained twin as well",
        },
    )


def verdict_rows(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], of_twin: Mapping[str, Verdict]
) -> list[dict[str, Any]]:
    return [_row(name, claim, verdicts[name], of_twin.get(name)) for name, claim in claims.items()]


def _row(name: str, claim: Claim, verdict: Verdict, of_twin: Verdict | None) -> dict[str, Any]:
    estimate, untrained = verdict.estimate, "" if of_twin is None else of_twin.word
    found = ("", "") if estimate is None or estimate.found is None else estimate.found
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
        **dict(zip(("least", "most"), found, strict=True)),
        "needed": verdict.needed or "",
        "untrained": untrained,
        "learned": "no" if verdict.word == untrained == "holds" else "",
        "reason": verdict.reason,
        "source": claim.source,
    }
