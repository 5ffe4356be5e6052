"""python -m mhprobe lists the commands and opens each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    assert {*explained(text)} == {*door.commands(), "demo"} >= {*sections.commands_of_conf()}
    elsewhere = re.search(r"is the same \((.*?)\)", " ".join(text.split()))[1]
    for name, (module, _) in door.commands().items():
        assert (module == f"mhprobe.{name}") != (f"{name}: {module}" in elsewhere)


@pytest.mark.parametrize(
    ("argv", "opened"),
    [
        (["train", "seed=1"], ["-m", "mhprobe.train", "seed=1"]),
        (["studies.causal", "--help"], ["-m", "mhprobe.studies.causal", "--help"]),
        (["report", "."], ["-P", "-m", "mhprobe.report", "."]),
        (["compare", "a", "b"], ["-P", "-m", "mhprobe.compare", "a", "b"]),
        (["look", "a", "b"], ["-P", "-m", "mhprobe.looking", "a", "b"]),
        (["diff", "a", "b", "c"], ["-P", "-m", "mhprobe.differing", "a", "b", "c"]),
        (["demo", "--help"], ["-m", "mhprobe.train", *door.DEMO[1:], "--help"]),
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


def test_the_page_on_security_names_the_commands_that_import_nothing_from_where_one_stands():
    text = " ".join(Path("SECURITY.md").read_text().split())
    named = re.search(r"`mhprobe (report`.*?) import nothing from the folder", text)[1]
    assert {*re.findall(r"[\w.]+(?=`)", named)} == door.READERS


class Started:
    """A process that a test pretends to have started, and its exit status."""

    def __init__(self, command: list[str], status: int, says: str, stdout=None) -> None:
        self.command, self.status, self.ended = command, status, False
        if stdout is not None:
            stdout.write(says)
            stdout.flush()

    def wait(self) -> int:
        return self.status

    def terminate(self) -> None:
        self.ended = True


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Runs ``mhprobe demo`` with pretended processes: their list, and what the demo's own process does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door.signal, "signal", lambda *_: None)
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.setattr(door, "WEIGHTS", tmp_path / "w.safetensors")

    def run(
        status: int = 0, look: int = 0, says: str = "a sentence\nthe page: file:///look.html\n"
    ):
        processes = []

        def popen(command, stdout=None, stderr=None):
            ends = look if "mhprobe.looking" in command else status
            processes.append(Started(command, ends, says, stdout))
            return processes[-1]

        monkeypatch.setattr(door.subprocess, "Popen", popen)
        return door.demo(["seed=1"]), processes

    return run


def test_the_demo_ends_with_two_pages(started, capsys):
    status, (look, train) = started()
    assert status == 0 and train.command[1:] == ["-m", "mhprobe.train", *door.DEMO[1:], "seed=1"]
    photographs = Path(look.command[5])
    assert {"china.jpg", "flower.jpg"} <= {path.name for path in photographs.iterdir()}
    assert look.command[-1] == str(door.LOOK) and door.LOOK.parent.is_dir()
    assert capsys.readouterr().out.endswith("photographs:\nthe page: file:///look.html\n")


def test_a_second_page_that_cannot_be_made_is_told_and_does_not_fail_the_demo(started, capsys):
    status, _ = started(look=2, says="mhprobe look: no room\n")
    said = capsys.readouterr().out
    assert status == 0 and "second page could not be made: mhprobe look: no room" in said


@pytest.mark.parametrize(("ends", "status"), [(2, 2), (-15, 143)])
def test_a_demo_that_fails_ends_the_look_and_has_its_status(started, capsys, ends, status):
    got, (look, _) = started(status=ends)
    assert got == status and look.ended and capsys.readouterr().out == ""


def test_without_the_weights_of_a_clone_the_demo_says_that_one_page_is_missing(
    started, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(door, "WEIGHTS", tmp_path / "nothing")

    def execv(program, arguments):
        raise SystemExit(arguments[1:])

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit) as left:
        started()
    assert left.value.code == ["-m", "mhprobe.train", *door.DEMO[1:], "seed=1"]
    assert "needs the weights of a clone" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_the_known_ones(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mhprobe", "trian"])
    with pytest.raises(SystemExit) as left:
        door.main()
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "did you mean train? there are" in error and "prune" in error


@pytest.fixture
def strangers(tmp_path):
    """A folder whose modules leave a canary where one of them is run."""
    for name in ("yaml", "numpy", "jinja2", "torch"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w')")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("said", [["report", "."], ["look", ".", "."]], ids=lambda said: said[0])
def test_modules_in_the_folder_one_stands_in_are_not_run(said, strangers):
    """A stranger's run may hold a yaml.py; ``mhprobe report .`` reads the folder as data."""
    program = "from mhprobe.__main__ import main; main()"
    begin = [sys.executable, "-P", "-c", program]  # as the script begins, which stands elsewhere
    done = subprocess.run([*begin, *said], cwd=strangers, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (strangers / "canary").exists()


def test_python_alone_runs_modules_in_the_folder_one_stands_in(strangers):
    """The control of the test above."""
    command = [sys.executable, "-m", "mhprobe.report", "."]
    subprocess.run(command, cwd=strangers, capture_output=True)
    assert (strangers / "canary").exists()
