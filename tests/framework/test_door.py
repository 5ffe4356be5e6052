"""python -m mhprobe lists the commands and opens each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mhprobe import __main__ as door
from mhprobe.framework.run import sections


def said(monkeypatch, capsys, *argv: str) -> str:
    """What ``mhprobe`` prints."""
    monkeypatch.setattr(sys, "argv", ["mhprobe", *argv])
    door.main()
    return capsys.readouterr().out


def explained(text: str) -> list[str]:
    """The commands of which a listing says what they do."""
    lines = [line.removeprefix("  mhprobe ") for line in text.splitlines() if line.startswith("  ")]
    return [line.split()[0] for line in lines]


def test_the_help_explains_seven_commands_and_names_the_others(capsys, monkeypatch):
    text = said(monkeypatch, capsys)
    first = explained(text)
    assert len(first) == 7 and first[:3] == ["demo", "look", "train"]
    rest = re.search(r"More: (.*?)\. `mhprobe more`", " ".join(text.split()))[1].split(", ")
    assert {*first, *rest} == {*door.commands(), "demo"} and not {*first} & {*rest}
    assert text == said(monkeypatch, capsys, "--help")


def test_every_command_is_listed_with_what_it_does(capsys, monkeypatch):
    text = said(monkeypatch, capsys, "more")
    assert {*explained(text)} == {*door.commands(), "demo"} >= {*sections.commands()}
    for name, (module, _) in door.commands().items():
        assert (module == f"mhprobe.{name}") != (f"is the same ({name}: {module})" in text)


@pytest.mark.parametrize(
    ("argv", "opened"),
    [
        (["train", "seed=1"], ["-m", "mhprobe.train", "seed=1"]),
        (["studies.causal", "--help"], ["-m", "mhprobe.studies.causal", "--help"]),
        (["report", "."], ["-P", "-m", "mhprobe.report", "."]),
        (["look", "a", "b"], ["-P", "-m", "mhprobe.looking", "a", "b"]),
        (["demo", "seed=1"], ["-m", "mhprobe.train", *door.DEMO[1:], "seed=1"]),
    ],
)
def test_a_command_is_opened_with_all_that_was_said(argv, opened, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mhprobe", *argv])

    def execv(program, arguments):
        raise SystemExit(arguments[1:])

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit) as left:
        door.main()
    assert left.value.code == opened


def test_an_unknown_command_is_answered_with_the_known_ones(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mhprobe", "trian"])
    with pytest.raises(SystemExit) as left:
        door.main()
    assert left.value.code == 2
    assert "train" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "compare", "look"])
def test_modules_in_the_folder_one_stands_in_are_not_run(command, tmp_path):
    """A stranger's run may hold a yaml.py; ``mhprobe report .`` reads the folder as data."""
    for name in ("yaml", "numpy", "jinja2", "torch"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w')")
    said = [".", "."] if command == "look" else ["."]
    program = "from mhprobe.__main__ import main; main()"
    begin = [sys.executable, "-P", "-c", program]  # as the script begins, which stands elsewhere
    done = subprocess.run([*begin, command, *said], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "canary").exists()
    # the control: python -m has such modules first
    subprocess.run([sys.executable, "-m", "mhprobe.report", "."], cwd=tmp_path, capture_output=True)
    assert (tmp_path / "canary").exists()
