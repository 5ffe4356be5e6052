"""The claims that were asked of a network: each estimated as soon as it can be, then all of them judged together."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

import lightning as L

from mhprobe import ranks
from mhprobe.claims.parts import words
from mhprobe.claims.parts.claim import Claim, Evidence
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.claims.parts.judge import Verdict, judge
from mhprobe.claims.parts.measured import Measured
from mhprobe.errors import UserError
from mhprobe.io.progress import announce
from mhprobe.report.report import Report

log = logging.getLogger(__name__)


class AsksClaims(L.Callback):
    """Judges claims at the end of the test, of the network and of its untrained twin.

    claims: by name. evidence: makes it, where the network is. verdicts, of_twin: by claim, once the test has ended.
    """

    def __init__(self, claims: Mapping[str, Claim], evidence: functools.partial[Measured], report: Report) -> None:
        self.claims, self.evidence, self.report = claims, evidence, report
        self.verdicts: dict[str, Verdict] = {}
        self.of_twin: dict[str, Verdict] = {}

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        evidence = self.evidence(pl_module, trainer.datamodule)  # type: ignore[attr-defined]
        self.verdicts = ask(self.claims, evidence, say=trainer.is_global_zero)
        self.of_twin = {} if evidence.twin is None else ask(self.claims, evidence.twin)
        if trainer.is_global_zero:
            self.report.add("claims", words.result(self.claims, self.verdicts, self.of_twin))
            announce(words.sentences(self.verdicts, self.of_twin))


def ask(claims: Mapping[str, Claim], evidence: Evidence, say: bool = False) -> dict[str, Verdict]:
    """Return the verdict on each claim. say: a line for each as soon as it is estimated. A collective.

    Claims that rest on measures alone come first: they share passes.
    """
    found: dict[str, Estimate | UserError] = {}
    for name, claim in sorted(claims.items(), key=lambda item: not item[1].measures):
        found[name] = _estimate(claim, evidence)
        if say:
            log.info("%s", words.line(name, claim, found[name]))
    return judge(claims, found)


def _estimate(claim: Claim, evidence: Evidence) -> Estimate | UserError:
    try:
        for name in claim.measures:  # before the claim's own work: its numbers share a pass with those of others
            evidence.columns(name)
        return claim.effect(evidence)
    except ranks.LeftAlone:
        raise
    except UserError as error:
        return error
