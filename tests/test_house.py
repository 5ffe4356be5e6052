"""How the house is kept: files that say what they are, one loss, one reader of tables, commands that are modules."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import mhprobe
from mhprobe.backbones import Family
from mhprobe.masking.base import Order
from mhprobe.measures.base import Measure
from mhprobe.scoring.base import Score

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"
FILES = sorted(PACKAGE.rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


@pytest.mark.parametrize(
    "name", ["train", "probe", "mask", "prune", "claims", "looking", "differing"]
)
def test_a_command_is_one_module_of_the_package(name):
    """``mhprobe.train`` and ``python -m mhprobe.train`` are one file: no folder is added to the package's path."""
    module = importlib.import_module(f"mhprobe.{name}")
    assert Path(module.__file__) == PACKAGE / f"{name}.py"
    assert list(mhprobe.__path__) == [str(PACKAGE)]


def test_every_file_says_what_it_is():
    assert [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


def losses_of_their_own(package: Path) -> list[str]:
    """Files that call torch's cross-entropy."""
    names = ("cross_entropy", "nll_loss")
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    return [
        str(path.relative_to(package))
        for path, tree in trees.items()
        if any(
            (getattr(node, "attr", None) or getattr(node, "id", None)) in names
            for node in ast.walk(tree)
        )
    ]


def test_a_loss_is_one_function_in_float64_and_its_slope_another():
    """measures/parts/losses.py writes the one out; the other is taken in the model's precision."""
    assert losses_of_their_own(PACKAGE) == ["recording/outputs.py"]


def test_a_planted_loss_is_found(tmp_path):
    (tmp_path / "planted.py").write_text(
        "from torch.nn import functional as F\nx = F.cross_entropy(y, z)"
    )
    (tmp_path / "another.py").write_text(
        "from torch.nn.functional import cross_entropy\nx = cross_entropy(y, z)"
    )
    assert losses_of_their_own(tmp_path) == ["another.py", "planted.py"]


def test_one_callback_of_ours_works_at_the_end_of_a_test():
    """The classifier itself counts what is right; whoever else has work then asks it as a question."""
    named = {path: {f.name for f in functions(ast.parse(path.read_text()))} for path in FILES}
    working = [path for path, names in named.items() if "on_test_epoch_end" in names]
    assert [str(path.relative_to(PACKAGE)) for path in working] == [
        "framework/questions/ask.py",
        "framework/training/classifier.py",
    ]


def test_tables_have_one_reader():
    readers = [
        path
        for path in FILES
        if "csv.reader" in path.read_text() or "DictReader" in path.read_text()
    ]
    assert [str(path.relative_to(PACKAGE)) for path in readers] == ["io/head_tables.py"]


def without_members(room: str, base: type) -> list[str]:
    """Files of the room, but for base.py, that define no class below ``base``."""
    names = [info.name for info in pkgutil.iter_modules([str(PACKAGE / room)]) if not info.ispkg]
    modules = {name: f"mhprobe.{room.replace('/', '.')}.{name}" for name in names if name != "base"}
    classes = {
        name: [
            item
            for item in vars(importlib.import_module(module)).values()
            if isinstance(item, type)
        ]
        for name, module in modules.items()
    }
    return [
        name
        for name, items in classes.items()
        if not any(issubclass(item, base) and item.__module__ == modules[name] for item in items)
    ]


def test_helpers_stand_in_parts_not_among_members():
    assert without_members("measures", Measure) == []
    assert without_members("masking", Order) == [
        "obs",
        "redundant_or_inert",
    ]  # named by yamls: a score of units, a reading of curves
    assert without_members("backbones", Family) == []
    assert without_members("scoring", Score) == []
    assert {"hashing", "moments"} <= set(without_members("measures/parts", Measure))


def unshortened(text: str) -> list[str]:
    """What a UserError quotes by !r: an argument of any length, where ``quoted`` shortens it."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    errors = [call for call in calls if getattr(call.func, "id", "") == "UserError"]
    parts = [
        part for error in errors for part in ast.walk(error) if isinstance(part, ast.FormattedValue)
    ]
    return [ast.unparse(part.value) for part in parts if part.conversion == ord("r")]


def test_errors_quote_arguments_shortened():
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in FILES
        if (names := unshortened(path.read_text()))
    }
    assert found == {}
    assert unshortened('raise UserError(f"got {x!r}.")') == ["x"] and not unshortened(
        'UserError(f"{quoted(x)}")'
    )


def compared_with_five_percent(source: str) -> list[str]:
    """Comparisons of something that is less than .05, as code."""
    comparisons = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare))
    found = []
    for node in comparisons:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            least = right if isinstance(operator, (ast.Lt, ast.LtE)) else left
            other = isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
            if other and isinstance(least, ast.Constant) and least.value == 0.05:
                found.append(ast.unparse(node))
    return found


def test_one_function_says_what_is_significant():
    """Ten places compared a p with .05, one without the direction: ``significant`` and ``lower`` do now."""
    found = {
        path.relative_to(PACKAGE).as_posix(): compared
        for path in FILES
        if (compared := compared_with_five_percent(path.read_text()))
    }
    assert found == {}
    for wrong in ("row['p_holm'] < 0.05", "(p <= .05) & below", "0.05 > p"):  # the control
        assert compared_with_five_percent(wrong)
    assert not compared_with_five_percent("share > 0.05")
