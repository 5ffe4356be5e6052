"""What docstrings show is what comes out."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"
SHOWING = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_give_what_they_say(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    # doctest passes over a function behind a decorator of another module: an example there would
    # never be run
    assert results.attempted == path.read_text().count(">>> ") and not results.failed


def test_what_a_notebook_starts_with_shows_an_exact_answer():
    first = (
        "heads/layout.py",
        "backbones/__init__.py",
        "gates/base.py",
        "surgery/removal.py",
        "api.py",
    )
    assert {PACKAGE / name for name in first} <= set(SHOWING)


def test_some_measures_show_an_exact_answer():
    assert len([path for path in SHOWING if path.parent.name == "measures"]) >= 5
