"""How the house is kept: few doors, commands of a page, no function that has to be scrolled."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from mhprobe.backbones import Family
from mhprobe.masking.base import Order
from mhprobe.measures.base import Measure
from mhprobe.scoring.base import Score

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"
COMMANDS = PACKAGE / "commands"
FILES = sorted(PACKAGE.rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def too_long(text: str, most: int) -> list[str]:
    return [f.name for f in functions(ast.parse(text)) if f.end_lineno - f.lineno + 1 > most]


def is_command(path: Path) -> bool:
    """Something that ``python -m`` runs: it ends in a main."""
    text = path.read_text()
    return path.stem == "__main__" or 'if __name__ == "__main__"' in text


def test_no_function_has_to_be_scrolled():
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in FILES
        if (names := too_long(path.read_text(), 60))
    }
    assert found == {}
    assert too_long("def f():\n" + "    pass\n" * 60, 60) == ["f"]


def test_the_package_has_few_doors():
    doors = {
        path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))
    }
    assert len(doors) <= 26 and not [
        name for name in doors if name.endswith(".py") and is_command(PACKAGE / name)
    ]


def test_what_stands_among_the_commands_is_one():
    names = {path.name for path in COMMANDS.glob("*.py") if is_command(path)}
    assert names == {path.name for path in COMMANDS.iterdir()} - {"__pycache__"}
    assert {"__main__.py", "train.py", "probe.py", "mask.py", "prune.py"} <= names


def test_a_command_is_a_module_of_the_package():
    """Its folder is on the package's path, so that ``python -m mhprobe.train`` finds it there."""
    assert Path(importlib.import_module("mhprobe.train").__file__) == COMMANDS / "train.py"


def test_a_command_is_a_page():
    for path in FILES:
        if path.parent == COMMANDS:
            assert len(path.read_text().splitlines()) <= 60, path.name


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
        "questions/ask.py",
        "training/classifier.py",
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


GRAMMAR = {"asked", "each", "found", "given", "known", "made", "own", "said", "told"}


def mere_words(text: str) -> list[str]:
    """Names of values and functions that are words of grammar: they say nothing, and no search finds them."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    names += [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    names += [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [name for name in names if name.strip("_") in GRAMMAR]


def test_names_are_nouns_or_verbs_of_the_field():
    root = Path(__file__).parents[1]
    files = [*FILES, *(root / "benchmarks").rglob("*.py"), *(root / "tools").rglob("*.py")]
    words = {
        str(path.relative_to(root)): names
        for path in files
        if (names := mere_words(path.read_text()))
    }
    # a field: the column of headbench_grades.csv
    assert words == {"src/mhprobe/headbench/sensitivity.py": ["found"]}
    assert mere_words("def _told(own):\n    self.known = [each for each in own]") == [
        "each",
        "known",
        "own",
        "_told",
    ]


def examples() -> dict[str, str]:
    """The Python that a reader copies: blocks of pages, cells of notebooks, docstrings."""
    root, fence = Path(__file__).parents[1], re.compile(r"```python\n(.*?)```", re.S)
    texts = {
        path.name: "\n".join(fence.findall(path.read_text()))
        for path in (root / "docs").rglob("*.md")
    }
    texts["README.md"] = "\n".join(fence.findall((root / "README.md").read_text()))
    for path in (root / "notebooks").glob("*.ipynb"):
        cells = [
            cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        texts[path.name] = "\n".join("".join(cell["source"]) for cell in cells)
    for path in FILES:
        nodes = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, DOCUMENTED)
        ]
        texts[str(path.relative_to(PACKAGE))] = "\n".join(
            ast.get_docstring(node) or "" for node in nodes
        )
    return texts


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
ASSIGNED = re.compile(
    rf"^[> ]*(?:\w+, )*({'|'.join(sorted(GRAMMAR))})(?:, \w+)* = |\bfor ({'|'.join(sorted(GRAMMAR))}) in",
    re.M,
)


def test_examples_use_such_names_too():
    words = {
        name: match[0] for name, text in examples().items() if (match := ASSIGNED.search(text))
    }
    assert words == {}
    assert ASSIGNED.search(">>> even, own = 1, 2") and ASSIGNED.search("sum(each for each in x)")
