"""Who may import whom: the arrows that keep each noun in its place."""

from __future__ import annotations

import ast
import functools
import graphlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"

# From the ground up: a room (a folder or a loose module) imports only rooms that stand before it.
FLOORS = (
    "errors",
    "ranks",
    "stats",
    "heads",
    "measures",
    "gates",
    "io",
    "data",
    "backbones",
    "masking",
    "recording",
    "report",
    "scoring",
    "headbench",
    "surgery",
    "weights",
    "api",
    "questions",
    "training",
    "run",
    "maps",
    "looking",
    "studies",
    "claims",
    "commands",
)
# What a room, or one file, must not import although it stands higher: a library, or a room it has
# no business with.
FORBIDDEN = {
    "heads": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics", "numpy"},
    "stats": {"lightning", "timm", "hydra", "wandb", "matplotlib", "mhprobe.heads"},
    "io": {"lightning", "timm", "hydra", "wandb", "matplotlib", "torchmetrics"},
    "gates": {
        "lightning",
        "timm",
        "hydra",
        "wandb",
        "matplotlib",
        "torchmetrics",
        "mhprobe.measures",
    },
    "recording": {
        "lightning",
        "timm",
        "hydra",
        "wandb",
        "matplotlib",
        "mhprobe.masking",
        "mhprobe.report",
    },
    "scoring": {"lightning", "timm", "hydra", "wandb", "matplotlib", "mhprobe.report"},
    "backbones": {"lightning", "hydra", "wandb", "matplotlib", "mhprobe.measures"},
    "measures": {
        "lightning",
        "timm",
        "hydra",
        "omegaconf",
        "wandb",
        "matplotlib",
        "mhprobe.io",
        "mhprobe.data",
    },
    "maps": {
        "lightning",
        "timm",
        "hydra",
        "wandb",
        "matplotlib",
        "mhprobe.measures",
        "mhprobe.masking",
    },
    "masking": {
        "lightning",
        "timm",
        "hydra",
        "wandb",
        "matplotlib",
        "mhprobe.gates",
        "mhprobe.data",
    },
    "surgery": {"lightning", "hydra", "wandb", "matplotlib", "mhprobe.report"},
    "data": {"timm", "hydra", "wandb", "mhprobe.gates", "mhprobe.measures"},
    "report": {"hydra", "timm", "mhprobe.gates", "mhprobe.measures", "mhprobe.backbones"},
    "training": {"hydra", "wandb"},
    "training/classifier.py": {"mhprobe.measures", "mhprobe.masking", "mhprobe.report"},
    "api": {"lightning", "hydra", "wandb", "matplotlib"},
}
# Some libraries stop at one door: room -> the only rooms or files that may import it.
DOORS = {"hydra": {"run"}, "wandb": {"report/wandb.py"}, "transformers": {"backbones"}}
# Of the package itself a room may take this; all else that it names for users comes from rooms that
# stand above most.
OWN = {"__version__"}


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join([package.name, *(part for part in parts if part != "__init__")])] = path
    return found


def imports(path: Path) -> frozenset[str]:
    """Every module named in an import statement or an import_module("..."), in functions and under TYPE_CHECKING too.

    ``from a import b`` counts as a.b, and as a where that is inside a package. A relative import
    begins with dots.
    """
    return imports_of(path.read_text())


@functools.cache  # of text: a copy of the package is read, and need not be parsed, again
def imports_of(text: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module} if "." in module else set()
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in (
            vars(node.func).get("attr"),
            vars(node.func).get("id"),
        ):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return frozenset(found)


def reaches(name: str, forbidden: str) -> bool:
    return name == forbidden or name.startswith(forbidden + ".")


def rooms(package: Path) -> set[str]:
    return {path.stem if path.is_file() else path.name for path in package.iterdir()} - {
        "__init__",
        "__pycache__",
    }


def room_of(module: str) -> str:
    """'mhprobe.masking.search.exact' -> 'masking'; '' for the package itself, which names everything for users."""
    return module.split(".")[1] if "." in module else ""


def wrong_arrows(package: Path) -> list[str]:
    """What is against the rules above, one line each; empty in a house that is in order."""
    known, wrong, files, packages = modules(package), [], {}, {}
    for module, path in known.items():
        room, names = room_of(module), imports(path)
        arrows = {name for name in names if name in known and name not in (module, package.name)}
        files[module] = {name for name in arrows if not names_a_room_only(name, names, known)}
        if not room:
            continue
        if room not in FLOORS:
            wrong.append(f"{module}: the room {room} has no floor in this test")
            continue
        packages.setdefault(room, set()).update({room_of(name) for name in arrows} - {room})
        for name in sorted(arrows):
            if (
                room_of(name) != room
                and room_of(name) in FLOORS
                and FLOORS.index(room_of(name)) > FLOORS.index(room)
            ):
                wrong.append(f"{module} imports {name}, which stands above it")
        where = str(path.relative_to(package))
        forbidden = FORBIDDEN.get(room, set()) | FORBIDDEN.get(where, set())
        wrong += [
            f"{module} imports {name}"
            for name in sorted(names)
            for no in forbidden
            if reaches(name, no)
        ]
        wrong += [
            f"{module} imports {name}: name it from {package.name}"
            for name in sorted(names)
            if name[0] == "."
        ]
        if FLOORS.index(room) < FLOORS.index("api"):
            wrong += [
                f"{module} imports {name}, which stands above it"
                for name in sorted(for_users(names, package, known))
            ]
        wrong += [
            f"{module} imports {name}: only {', '.join(sorted(doors))} may"
            for name in sorted(names)
            for library, doors in DOORS.items()
            if reaches(name, library) and room not in doors and where not in doors
        ]
    for what, graph in (("files", files), ("rooms", packages)):
        try:
            list(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            wrong.append(f"a circle of {what}: {' -> '.join(error.args[1])}")
    return wrong


def for_users(names: frozenset[str], package: Path, known: dict[str, Path]) -> set[str]:
    """What is taken from the package itself: ``import mhprobe``, ``from mhprobe import attach``."""
    top = {name for name in names if name.startswith(f"{package.name}.") and name.count(".") == 1}
    taken = {name for name in top if not any(reaches(module, name) for module in known)}
    return (taken | names & {package.name}) - {f"{package.name}.{own}" for own in OWN}


def names_a_room_only(name: str, names: frozenset[str], known: dict[str, Path]) -> bool:
    """``from mhprobe.gates.base import X`` is an arrow to that file, not also to the file of mhprobe.gates."""
    inside = any(other in known and reaches(other, name) for other in names - {name})
    return known[name].name == "__init__.py" and inside


def test_every_room_has_its_floor():
    assert rooms(PACKAGE) - {"conf"} == set(FLOORS)
    assert {place.partition("/")[0] for place in FORBIDDEN} <= set(FLOORS)


def test_arrows_point_one_way():
    assert wrong_arrows(PACKAGE) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Of the package, to plant in."""
    return Path(
        shutil.copytree(
            PACKAGE,
            tmp_path_factory.mktemp("copy") / "mhprobe",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    )


@pytest.mark.parametrize(
    ("where", "line", "complaint"),
    [
        (
            "masking/search/planted.py",
            "from mhprobe.training.classifier import GatedClassifier",
            "stands above it",
        ),
        ("measures/planted.py", "import timm", "imports timm"),
        (
            "report/figures/planted.py",
            "def f():\n    from mhprobe.gates import gates_of",
            "imports mhprobe.gates",
        ),
        (
            "surgery/planted.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mhprobe.run.cli import "
            "main",
            "stands above it",
        ),
        ("maps/planted.py", "import hydra", "only run may"),
        ("gates/planted.py", "from mhprobe.commands import train", "stands above it"),
        ("measures/planted.py", "def f():\n    import transformers.models", "only backbones may"),
        ("heads/planted.py", "from ..run import cli", "name it from mhprobe"),
        ("masking/search/planted.py", "from ...run.cli import main", "name it from mhprobe"),
        ("heads/planted.py", "from mhprobe import plot", "stands above it"),
        ("masking/planted.py", "def f():\n    from mhprobe import prune_heads", "stands above it"),
        ("heads/planted.py", "import mhprobe\nmhprobe.load", "stands above it"),
        (
            "heads/planted.py",
            "import importlib\nimportlib.import_module('mhprobe.run.cli')",
            "stands above it",
        ),
        ("annexe/planted.py", "", "has no floor"),
        ("planted.py", "", "has no floor"),
    ],
)
def test_a_planted_arrow_is_found(copy, where, line, complaint):
    planted, new = copy / where, not (copy / where).parent.exists()
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    wrong = wrong_arrows(copy)
    shutil.rmtree(planted.parent) if new else planted.unlink()
    assert wrong and all("planted" in found for found in wrong if not found.startswith("a circle"))
    assert any(complaint in found for found in wrong)


def test_a_planted_circle_of_files_is_found(tmp_path):
    copy = tmp_path / "mhprobe"
    (copy / "stats").mkdir(parents=True)
    (copy / "stats" / "one.py").write_text("from mhprobe.stats import two")
    (copy / "stats" / "two.py").write_text("from mhprobe.stats.one import thing")
    (wrong,) = wrong_arrows(copy)
    assert wrong.startswith("a circle of files: ")


@pytest.mark.parametrize("library", DOORS)
def test_every_door_is_used(library):
    assert any(reaches(name, library) for path in PACKAGE.rglob("*.py") for name in imports(path))


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("mhprobe", {"torch", "lightning", "timm", "hydra", "wandb", "matplotlib"}),
        ("mhprobe.run.cli", {"torch", "lightning", "timm", "wandb", "matplotlib", "sklearn"}),
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
