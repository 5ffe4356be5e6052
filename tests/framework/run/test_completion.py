"""bash completes commands and what their configuration has, and nothing that they have not."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from mhprobe import __main__ as door
from mhprobe.framework.run import about, sections

COMMANDS = door.commands()


def offers(line: str) -> list[str]:
    return about.offers(line, COMMANDS, door.DEMO)


def test_the_first_word_is_a_command():
    assert set(offers("mhprobe ")) == {*COMMANDS, "demo"}
    assert (
        set(offers("mhprobe pr")) == {name for name in COMMANDS if name.startswith("pr")} != set()
    )


@pytest.mark.parametrize("group", ["data", "backbone", "+experiment"])
def test_a_group_is_completed_with_what_can_be_chosen(group):
    assert offers(f"mhprobe train {group}=") == [
        f"{group}={option}" for option in sections.options_of_group(group.strip("+"))
    ]


def test_settings_are_those_of_the_command_and_of_what_was_chosen_before():
    assert offers("mhprobe demo optim.lr") == ["optim.lr="]
    assert offers("mhprobe prune data=cifar10 data.source.r") == [
        "data.source.root="
    ]  # digits have none
    words = offers("mhprobe mask ")
    assert "+experiment=" in words and "experiment=" not in words
    groups = {word.strip("+=.").split(".")[0] for word in words} - {"hydra", "experiment"}
    assert groups == sections.sections("mask")


@pytest.mark.parametrize(
    "line",
    ["mhprobe report ", "mhprobe nothing ", "mhprobe train optim=5 opt", "mhprobe train a=[ b"],
)
def test_where_hydra_has_no_answer_nothing_is_offered(line):
    assert offers(line) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("breaks", "before"), [("=", ""), ("", "data=")])
def test_bash_takes_the_script_and_replaces_what_stands_behind_the_equals_sign(
    breaks, before, monkeypatch, capsys, tmp_path
):
    """The function that bash calls at a tab, with the variables that it sets then."""
    monkeypatch.setattr(sys, "argv", ["mhprobe", "--install-completion"])
    door.main()
    program = tmp_path / "mhprobe"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mhprobe "$@"\n')
    program.chmod(0o755)
    line = "mhprobe train data=ci"
    asked = f'COMP_LINE="{line}" COMP_POINT={len(line)} COMP_WORDS=("{program}") COMP_WORDBREAKS="{breaks}"; _mhprobe'
    script = f'{capsys.readouterr().out}\n{asked}\necho "${{COMPREPLY[*]}}"; complete -p mhprobe'
    done = subprocess.run(
        ["bash", "--norc", "-c", script], text=True, capture_output=True, timeout=60
    )
    shown = [before + name for name in sections.options_of_group("data") if name.startswith("ci")]
    assert len(shown) > 1
    completed = done.stdout.splitlines()
    assert completed == [" ".join(shown), "complete -o default -o nospace -F _mhprobe mhprobe"], (
        done.stderr
    )
