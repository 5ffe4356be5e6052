"""Who may import whom: the contracts of pyproject.toml, checked by import-linter, and what an import costs."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package, to plant in."""
    source = tmp_path_factory.mktemp("copy")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, source / "mhprobe", ignore=without)
    return source


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("masking/search/planted.py", "from mhprobe.framework.run.cli import main"),
        ("framework/run/planted.py", "from mhprobe.lab.claims.parts.claim import claim"),
        ("framework/run/planted.py", "def f():\n    from mhprobe.pages.html import write_report"),
        ("pages/planted.py", "from mhprobe.lab.papers import paper"),
        ("measures/planted.py", "import timm"),
        ("surgery/planted.py", "def f():\n    from mhprobe.pruning.rounds import prune"),
        ("weights/planted.py", "import omegaconf"),
        ("maps/planted.py", "import hydra"),
        ("gates/planted.py", "from mhprobe.train import run"),
        ("pages/planted.py", "import wandb"),
        ("framework/training/planted.py", "import hydra"),
    ],
)
def test_a_planted_arrow_is_found(copy, where, line):
    planted = copy / "mhprobe" / where
    planted.write_text(line)
    said = broken(copy)
    planted.unlink()
    assert "planted" in said and "BROKEN" in said


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("mhprobe", {"torch", "lightning", "timm", "hydra", "wandb", "matplotlib"}),
        (
            "mhprobe.framework.run.cli",
            {"torch", "lightning", "timm", "wandb", "matplotlib", "sklearn"},
        ),
        ("mhprobe.measures.gate_importance", {"lightning", "timm", "hydra", "wandb", "sklearn"}),
        (
            "mhprobe.masking.parts.curve",
            {"lightning", "timm", "hydra", "wandb", "matplotlib", "sklearn"},
        ),
    ],
)
def test_importing_costs_no_more_than_it_needs(module, absent):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {absent!r}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
