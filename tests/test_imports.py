"""Who may import whom: the contracts of pyproject.toml, checked by import-linter, and what an import costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mhprobe"
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def broken(source: Path) -> str:
    """Return what import-linter says of the package in ``source``; "" if every contract is kept."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_the_wings_import_downwards_only():
    assert broken(PACKAGE.parent) == ""


PLANTED = [
    ("masking/search", "from mhprobe.framework.run.cli import main"),
    ("framework/run", "from mhprobe.lab.claims.parts.claim import claim"),
    ("framework/run", "def f():\n    from mhprobe.pages.html import write_report"),
    ("pages", "from mhprobe.lab.papers import paper"),
    ("measures", "import timm"),
    ("surgery", "def f():\n    from mhprobe.pruning.rounds import prune"),
    ("weights", "import omegaconf"),
    ("maps", "import hydra"),
    ("gates", "from mhprobe.train import run"),
    ("pages", "import wandb"),
    ("framework/training", "import hydra"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Import-linter's answer for a copy of the package in which all arrows are planted, each in a module of its own."""
    source = tmp_path_factory.mktemp("copy")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, source / "mhprobe", ignore=without)
    for number, (where, line) in enumerate(PLANTED):
        (source / "mhprobe" / where / f"planted_{number}_.py").write_text(line)
    return broken(source)


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=lambda number: PLANTED[number][0])
def test_a_planted_arrow_is_found(said, number):
    """Nobody imports a planted module, so that it is named for its own arrow alone."""
    module = f"mhprobe.{PLANTED[number][0].replace('/', '.')}.planted_{number}_"
    assert module in said and "BROKEN" in said


# module -> what it must not import, beside what those above it import
COSTS = {
    "mhprobe": {"torch", "lightning", "timm", "hydra", "wandb", "matplotlib"},
    "mhprobe.masking.parts.curve": {
        "lightning",
        "timm",
        "hydra",
        "wandb",
        "matplotlib",
        "sklearn",
    },
    "mhprobe.measures.gate_importance": {"lightning", "timm", "hydra", "wandb", "sklearn"},
    "mhprobe.framework.run.cli": {
        "torch",
        "lightning",
        "timm",
        "wandb",
        "matplotlib",
        "sklearn",
    },
}
ALONE = "mhprobe.framework.run.cli"  # it takes Hydra, which the library must not


def loaded(*modules: str) -> dict[str, set[str]]:
    """The top-level packages that a fresh process holds after each of these imports, one after the other."""
    code = "import importlib, json, sys\nfor name in sys.argv[1:]:\n"
    code += "    importlib.import_module(name)\n    print(json.dumps([name, *sys.modules]))"
    result = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True
    )
    lines = map(json.loads, result.stdout.splitlines())
    return {name: {each.partition(".")[0] for each in held} for name, *held in lines}


@pytest.fixture(scope="module")
def held() -> dict[str, set[str]]:
    """Packages that are held after each module of COSTS: those of the library need torch, and share a process."""
    return loaded(*(name for name in COSTS if name != ALONE)) | loaded(ALONE)


@pytest.mark.parametrize("module", COSTS)
def test_importing_costs_no_more_than_it_needs(held, module):
    assert held[module] & COSTS[module] == set()


def test_what_is_imported_is_seen(held):
    """Negative control: torch by a measure, Hydra by the command line."""
    assert "torch" in held["mhprobe.measures.gate_importance"] and "hydra" in held[ALONE]
