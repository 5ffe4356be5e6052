"""``mhprobe GROUP=OPTION`` says what a choice is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mhprobe.errors import UserError
from mhprobe.framework.run import constructors, sections
from mhprobe.framework.run.about import help_of
from mhprobe.framework.run.members import FOLDERS, members

CHOICES = [
    f"{path.parent.relative_to(sections.CONF)}={path.stem}"
    for path in sorted(sections.CONF.rglob("*.yaml"))
    if path.parent not in (sections.CONF, sections.CONF / "shared")
] + [f"{group}={name}" for group in FOLDERS for name in members(group)]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_says_what_it_is(choice):
    first, *_ = help_of(choice).splitlines()
    assert len(first) > 10 and not first.startswith("#")


def test_options_are_shown_as_they_are_typed_with_their_defaults_and_explained():
    said = help_of("measure=svcca")
    for option, value in constructors.defaults_of("mhprobe.measures.svcca.SVCCA").items():
        shown = "null" if value is None else value
        assert f"\n  measure.svcca.{option}={shown}\n" in said
    assert "number of draws of the null" in said  # of the base class, whose options these are too
    assert ">>>" not in said and "_target_" not in said


def test_a_file_that_begins_with_another_has_its_options_and_no_others():
    said = help_of("gates=hard_concrete")
    assert "gates.relaxation.beta=" in said and "gates.threshold=" in said
    assert "gates.relaxation.learnable" not in said  # of the relaxation that it replaces


@pytest.mark.parametrize(
    ("choice", "there_are"), [("measures=svcca", "measure"), ("measure=svca", "svcca")]
)
def test_what_there_is_not_is_answered_with_what_there_is(choice, there_are):
    with pytest.raises(UserError, match=rf"{choice}: .*\b{there_are}\b"):
        help_of(choice)


def test_the_command_answers_and_refuses_in_one_line():
    def said(word: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mhprobe", word], capture_output=True, text=True
        )

    assert "measure.svcca.variance=" in said("measure=svcca").stdout
    refused = said("measure=svca")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("mhprobe: measure=svca: ") and refused.stderr.count("\n") == 1
