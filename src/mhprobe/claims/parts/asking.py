"""The claims that were asked of a network: each estimated as soon as it can be, then all of them judged together."""

import logging
from collections.abc import Mapping
from typing import Any

from mhprobe import ranks
from mhprobe.claims.parts import words
from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.judge import Verdict, judge
from mhprobe.claims.parts.measured import Measured
from mhprobe.errors import UserError
from mhprobe.io.progress import announce
from mhprobe.questions.material import Material
from mhprobe.report.result import Result

log = logging.getLogger(__name__)


def judged(material: Material, claims: Mapping[str, Claim], **parts: Any) -> dict[str, Result]:
    """Verdicts on claims, of the network and of its untrained twin. parts: of ``Measured``. A collective."""
    evidence = Measured(material, **parts)
    verdicts = ask(claims, evidence, say=material.first)
    of_twin = {} if evidence.twin is None else ask(claims, evidence.twin)
    if material.first:
        announce(words.sentences(verdicts, of_twin))
    return {"claims": words.result(claims, verdicts, of_twin)}


def ask(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Verdict]:
    """Return the verdict on each claim. say: a line for each as soon as it is estimated. A collective."""
    return judge(claims, estimates(claims, evidence, say))


def estimates(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Estimate | UserError]:
    """Return the estimate of each claim, or why there is none; those of measures alone first: they share passes."""
    found: dict[str, Estimate | UserError] = {}
    for name, claim in sorted(claims.items(), key=lambda item: not item[1].measures):
        try:
            found[name] = claim.estimate(evidence)
        except ranks.LeftAlone:
            raise
        except UserError as error:
            found[name] = error
        if say:
            log.info("%s: %s", name, words.number(claim, found[name]))
    return found
