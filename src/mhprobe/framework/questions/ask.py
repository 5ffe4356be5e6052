"""Answers to questions: each is asked as soon as its measures are taken, and written at once."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightning as L

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.framework.questions import plan
from mhprobe.framework.questions.material import Material, PassesTogether
from mhprobe.framework.questions.plan import Question
from mhprobe.io.files import write
from mhprobe.io.progress import announce
from mhprobe.report.report import Report
from mhprobe.report.result import Result

log = logging.getLogger(__name__)

FINISHED = "finished.json"  # question -> the digest of what decides it, and its files


class Answers(L.Callback):
    """Questions of a run, answered at the end of its test.

    refused: errors of questions that have no answer.
    """

    def __init__(
        self, wanted: Sequence[Question], material: Material, report: Report, estimate: bool = False
    ) -> None:
        self.questions = list(wanted)
        self.material = material
        self.report = report
        self.estimate = estimate
        self.refused: dict[str, UserError] = {}

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.find()  # Lightning moves the model to the CPU after the test

    def find(self) -> None:
        """Answer all questions with the model on its device.

        UserError if nothing can be recorded. A collective.
        """
        pending = self._pending()
        steps = plan.planned_steps(pending, self.material.measures)
        shown = {name for question in pending if question.control for name in question.measures}
        passes = [step.measures for step in steps]
        controlled = [[name for name in group if name in shown] for group in passes]
        self.material.passes = PassesTogether(passes, controlled)
        if self.estimate and steps:
            lines = plan.plan_in_words(steps, self.material)
            if self.material.first:
                announce(lines)
        for question in [question for step in steps for question in step.questions]:
            self._ask(question)
            if self.material.measurements.broken is not None:
                raise self.material.measurements.broken

    def _pending(self) -> list[Question]:
        """The questions that no earlier run into this folder has answered from the same."""
        done = ranks.from_rank_zero(self.read)
        pending = []
        for question in self.questions:
            made_from = done.get(question.name, {}).get("made_from")
            if question.made_from and made_from == question.made_from:
                self._say(f"{question.name}: there already")
            else:
                pending.append(question)
        return pending

    def _ask(self, question: Question) -> None:
        material = replace(self.material, names=question.measures, curve_names=question.curves)
        try:
            results = ranks.together(lambda: question.ask(material))
        except ranks.LeftAlone:
            raise
        except UserError as error:
            self.refused[question.name] = error
            if len(self.questions) > 1:  # a lone one's is printed at the end of the command
                self._say(f"{question.name}: not made. {error}")
            return
        # a rank that cannot write ends the run on all of them
        ranks.together(lambda: self._write(question, results))
        self._say(f"{question.name}: done")

    def _write(self, question: Question, results: Mapping[str, Result]) -> None:
        if not self.material.first:
            return
        files = [path for path in self.report.add(results) if path.parent != self.report.folder]
        if question.made_from:
            inside = [str(path.relative_to(self.report.folder)) for path in files]
            done = {
                **self.read(),
                question.name: {"made_from": question.made_from, "files": inside},
            }
            write(self.report.folder / FINISHED, (json.dumps(done, indent=2) + "\n").encode())

    def complain(self) -> None:
        """Raise the UserError of the first question without an answer."""
        for error in self.refused.values():
            raise error

    def read(self) -> dict[str, Any]:
        """Read finished.json on this rank. UserError if it is damaged."""
        return self.report.read(FINISHED, json.loads) or {}

    def _say(self, line: str) -> None:
        if self.material.first:
            log.info("%s", line)
