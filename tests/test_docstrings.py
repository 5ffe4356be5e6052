"""Public functions say what they raise: a user reads the docstring before the message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mhprobe

PACKAGE = Path(__file__).parents[1] / "src" / "mhprobe"
# what the package names for a notebook, and the rooms of the nouns that these give back
NAMED = {
    *mhprobe._HOME.values(),
    *(set(mhprobe.__all__) - set(mhprobe._HOME) - {"plot"}),
    "report.plot",
}
GIVEN = {"gates", "heads", "weights"}
FAMILIES = "backbones"  # of that room a notebook meets the door alone


def files_of(name: str) -> list[Path]:
    """Of a module by its dotted name; of a package all that it holds, but of the families."""
    path = PACKAGE.joinpath(*name.split("."))
    if path.is_dir():
        return [path / "__init__.py"] if name == FAMILIES else sorted(path.rglob("*.py"))
    return [path.with_suffix(".py")]


FILES = sorted({path for name in NAMED | GIVEN for path in files_of(name)})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def raises(
    function: Function, helpers: dict[str, Function], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether it raises a UserError, itself or through a private helper of its file."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and "UserError" in ast.dump(node):
            return True
        name = getattr(getattr(node, "func", None), "id", None) or getattr(
            getattr(node, "func", None), "attr", None
        )
        if name == "one_of":  # of errors.py
            return True
        if name in helpers and name not in seen and raises(helpers[name], helpers, seen | {name}):
            return True
    return False


def silent(source: str) -> Iterator[str]:
    """The public functions and methods that raise a UserError of which neither they nor their class say anything."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    helpers = {function.name: function for function in functions if function.name.startswith("_")}
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        if isinstance(owner, ast.ClassDef) and owner.name.startswith("_"):
            continue
        for node in owner.body:
            if not isinstance(node, Function) or (
                node.name.startswith("_") and node.name != "__init__"
            ):
                continue
            said = (ast.get_docstring(node) or "") + (ast.get_docstring(owner) or "") * isinstance(
                owner, ast.ClassDef
            )
            if raises(node, helpers) and "UserError" not in said and "refuse" not in said.lower():
                yield node.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_functions_say_that_they_raise_a_user_error(path):
    assert not list(silent(path.read_text()))


def test_a_silent_function_is_found_also_behind_a_helper():
    helper = 'def _check():\n    raise UserError("no")\n'
    assert list(silent(helper + 'def load():\n    """Load."""\n    _check()\n')) == ["load"]
    assert not list(
        silent(helper + 'def load():\n    """Load. Raises UserError."""\n    _check()\n')
    )
    assert list(silent('def load(a):\n    """Load."""\n    one_of("load", "a", a, A)\n')) == [
        "load"
    ]


def test_every_public_file_is_read():
    read = {str(path.relative_to(PACKAGE)) for path in FILES}
    assert {
        "api.py",
        "surgery/removal.py",
        "report/plot.py",
        "maps/rollout.py",
        "measures/sinks.py",
    } <= read
    assert all(path.is_file() for path in FILES)


VAGUE = {
    "What",
    "Those",
    "Who",
    "Whether",
    "Where",
    "Which",
    "How",
    "As",
    "Nothing",
    "So",
    "It",
    "They",
}
VAGUE |= {"Its", "Whose", "Of", "For"}


def documented(path: Path) -> Iterator[tuple[str, int, set[str]]]:
    """(docstring, line, names of its arguments or fields) of a module and all that it defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            makers = [node] if isinstance(node, ast.FunctionDef) else [*getattr(node, "body", [])]
            arguments = {
                argument.arg
                for maker in makers
                if maker is node
                or (isinstance(maker, ast.FunctionDef) and maker.name == "__init__")
                if isinstance(maker, ast.FunctionDef)
                for argument in (*maker.args.args, *maker.args.kwonlyargs)
            }
            fields = {
                field.target.id
                for field in makers
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
            yield text, getattr(node, "lineno", 1), arguments | fields


def opening(text: str, names: set[str]) -> str | None:
    """What is wrong with the first words of a docstring; None where they name the thing or its deed."""
    first = text.split(None, 1)[0]
    word = first.strip("`.,:;")
    if word in VAGUE:
        return f"begins with {word}"
    return f"begins with its argument {word}" if word in names and word.islower() else None


def test_the_first_sentence_of_a_docstring_names_the_thing_or_its_deed():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} {why}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for text, line, names in documented(path)
        if (why := opening(text, names))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_vague_first_sentence_is_seen():
    assert opening("What is left of it.", set()) and opening("rows: of the table.", {"rows"})
    assert opening("Return the rows of the table.", {"rows"}) is None
