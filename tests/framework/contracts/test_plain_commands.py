"""Commands that take plain words answer a mistake in one line, as those of Hydra do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import mhprobe

PACKAGE = Path(mhprobe.__file__).parent
PLAIN = [
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    for path in sorted(PACKAGE.rglob("*.py"))
    if "Parser(" in path.read_text() and path.name != "options.py"
]


def test_there_are_plain_commands_and_all_have_the_same_parser():
    assert {"looking", "differing", "shrink", "compare"} <= set(PLAIN)
    sources = {name: (PACKAGE / f"{name.replace('.', '/')}.py").read_text() for name in PLAIN}
    assert not [name for name, source in sources.items() if "ArgumentParser(" in source]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, ["--no-such-option"]) for name in PLAIN),
        *((name, []) for name in PLAIN if name != "headbench"),  # which needs no word
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(name, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *words])
    try:
        code = importlib.import_module(f"mhprobe.{name}").main()
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert code == 2
    assert said.err.count("\n") == 1 and "--help says what there is" in said.err
