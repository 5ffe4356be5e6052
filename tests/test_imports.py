"""Who may import whom: the arrows that keep each noun in its place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"

# module or package -> top-level names and mhprobe modules that it must not import, anywhere in its files
FORBIDDEN = {
    "heads.py": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics", "numpy"},
    "gates": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics", "mhprobe.measures"},
    "taps.py": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics", "mhprobe.measures"},
    "backbones": {"lightning", "hydra", "wandb", "matplotlib", "mhprobe.measures", "mhprobe.masking", "mhprobe.report"},
    "measures": {
        "lightning", "timm", "hydra", "omegaconf", "wandb", "matplotlib",
        "mhprobe.gates", "mhprobe.taps", "mhprobe.backbones", "mhprobe.report", "mhprobe.classifier",
    },
    "lrp.py": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics", "mhprobe.measures", "mhprobe.taps"},
    "maps": {"lightning", "timm", "hydra", "wandb", "matplotlib", "mhprobe.measures", "mhprobe.masking"},
    "masking": {
        "lightning", "timm", "hydra", "wandb", "matplotlib",
        "mhprobe.gates", "mhprobe.taps", "mhprobe.backbones", "mhprobe.measures", "mhprobe.evaluate", "mhprobe.report",
    },
    "surgery": {
        "lightning", "hydra", "wandb", "matplotlib", "mhprobe.app", "mhprobe.callbacks", "mhprobe.classifier",
    },
    "classifier.py": {"hydra", "wandb", "mhprobe.measures", "mhprobe.masking", "mhprobe.callbacks", "mhprobe.report"},
    "data": {"timm", "hydra", "wandb", "mhprobe.gates", "mhprobe.measures", "mhprobe.masking", "mhprobe.backbones"},
    "report": {"hydra", "timm", "mhprobe.gates", "mhprobe.measures", "mhprobe.backbones", "mhprobe.callbacks"},
    "callbacks": {"hydra", "timm", "wandb", "mhprobe.measures.gate_importance", "mhprobe.measures.svcca"},
}  # fmt: skip
ONLY = {"hydra": {"app.py", "cli.py"}, "wandb": {"report/wandb.py"}}


def imports(path: Path) -> set[str]:
    """Every module named in an import statement, also inside functions; ``from a import b`` counts as a and a.b.

    ``if TYPE_CHECKING`` blocks are left out: they run for nobody.
    """
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reaches(name: str, forbidden: str) -> bool:
    return name == forbidden or name.startswith(forbidden + ".")


@pytest.mark.parametrize("place", FORBIDDEN)
def test_arrows_point_one_way(place):
    files = [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).glob("*.py"))
    assert files
    wrong = {
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in files
        for name in imports(file)
        for forbidden in FORBIDDEN[place]
        if reaches(name, forbidden) and str(file.relative_to(PACKAGE)) not in ONLY.get(forbidden, ())
    }
    assert not wrong


@pytest.mark.parametrize("library", ONLY)
def test_some_libraries_stop_at_one_door(library):
    users = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if any(reaches(name, library) for name in imports(file))
    }
    assert users <= ONLY[library]
    assert users  # the rule still has a subject


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("mhprobe", {"torch", "lightning", "timm", "hydra", "wandb", "matplotlib"}),
        ("mhprobe.cli", {"torch", "lightning", "timm", "wandb", "matplotlib", "sklearn"}),
        ("mhprobe.measures.gate_importance", {"lightning", "timm", "hydra", "wandb", "sklearn"}),
        ("mhprobe.masking.curve", {"lightning", "timm", "hydra", "wandb", "matplotlib", "sklearn"}),
    ],
)
def test_importing_costs_no_more_than_it_needs(module, absent):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {absent!r}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
