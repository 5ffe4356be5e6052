"""Claims about a network: estimate each, then judge all together."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mhprobe import ranks
from mhprobe.claims.parts import words
from mhprobe.claims.parts.claim import Claim, known
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.evidence import Evidence
from mhprobe.claims.parts.judge import Verdict, judge
from mhprobe.errors import UserError
from mhprobe.io.progress import announce
from mhprobe.questions.material import Material
from mhprobe.questions.plan import Question
from mhprobe.report.result import Result
from mhprobe.report.runs.words import findings

log = logging.getLogger(__name__)


def judged(material: Material, claims: Mapping[str, Claim], **parts: Any) -> dict[str, Result]:
    """Verdicts on claims, of the network and of its untrained twin. parts: of ``Evidence``. A collective."""
    evidence = Evidence(material, **parts)
    verdicts = ask(claims, evidence, say=material.first)
    of_twin = {} if evidence.twin is None else ask(claims, evidence.twin)
    rows = words.rows(claims, verdicts, of_twin)
    if material.first:
        announce(findings(rows))
    return {"claims": words.result(rows)}


def ask(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Verdict]:
    """Return the verdict on each claim. say: a line for each as soon as it is estimated. A collective."""
    return judge(claims, estimates(claims, evidence, say))


def estimates(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Estimate | UserError]:
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
            log.info("%s: %s", name, words.number(claim, effects[name]))
    return effects


def quoted(question: Question, paper: str) -> Question:
    """Return the question of a figure of a paper, with the verdicts on the figure's claims at the end of its captions.

    Claims about curves need complete ones that validation images chose. Holm's correction is over all claims that
    figures of the paper have.
    """
    of_paper = {name: claim for name, claim in known().items() if claim.figure.startswith(f"{paper}/")}
    claims = {name: claim for name, claim in of_paper.items() if claim.figure == f"{paper}/{question.name}"}

    def ask(material: Material) -> Mapping[str, Result]:
        results, masking = question.ask(material), material.masking
        searched = masking is not None and masking.select_on == "validation" and masking.steps is masking.step is None
        here = {name: claim for name, claim in claims.items() if claim.measures or searched}
        sizes = material.data.sizes  # of all images, as the figure is
        evidence = Evidence(material, maps={}, of_maps=0, of_control=sizes["test"], of_choice=sizes["val"])
        verdicts = judge(here, estimates(here, evidence), asked=len(of_paper))
        text = " ".join(words.quote(here[name], verdict) for name, verdict in verdicts.items())
        text += f" (Holm's correction is over the {len(of_paper)} claims of this paper's figures.)"
        quotes = {name: part._replace(caption=f"{part.how_to_read}\n\n{text}") for name, part in results.items()}
        return quotes if here else results

    return replace(question, ask=ask, made_from=f"{question.made_from} {' '.join(of_paper)}") if claims else question
