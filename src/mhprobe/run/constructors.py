"""Options and docstrings of our constructors, read from their files: importing them would take seconds (torch).

A default is written once, in the constructor: ``fill`` adds it to what a yaml leaves out, so that ``--cfg job`` shows
it and an override needs no ``+``. It is a literal, or a name for one. One that is made (``default_factory``) is left to
the constructor.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

OURS = "mhprobe."
PACKAGE = Path(__file__).parents[1]
Options = dict[str, Any]
Place = tuple[str | int, ...]  # of keys


@functools.cache
def options(target: str) -> Options:
    """Option -> default, of the class or function that ``target`` names; those of a base class that it passes on, too.

    Nothing where it is not ours, or there is no such thing: whoever builds it says so.
    """
    module, _, name = target.rpartition(".")
    return _of(module, name) if _is_ours(module) else {}


def docstrings(target: str) -> list[tuple[str, str]]:
    """(name, text) of what ``target`` names, and of the base classes whose options it passes on."""
    module, _, name = target.rpartition(".")
    if not _is_ours(module):
        return []
    found = _named(module, name)
    if isinstance(found, tuple):
        return docstrings(".".join(found))
    if not isinstance(found, (ast.ClassDef, ast.FunctionDef)):
        return []
    bases = [base.id for base in getattr(found, "bases", []) if isinstance(base, ast.Name) and _of(module, base.id)]
    own = [(target, text)] if (text := ast.get_docstring(found)) else []
    return own + [pair for base in bases for pair in docstrings(f"{module}.{base}")]


def _is_ours(module: str) -> bool:
    return module.startswith(OURS) and _file(module).is_file()


def _file(module: str) -> Path:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _of(module: str, name: str) -> Options:
    found = _named(module, name)
    if isinstance(found, tuple):
        return _of(*found)
    if isinstance(found, ast.FunctionDef):
        return dict(_defaults(module, found))
    return _of_class(module, found) if isinstance(found, ast.ClassDef) else {}


def _named(module: str, name: str) -> ast.stmt | ast.expr | tuple[str, str] | None:
    """Resolve a name in a file: a definition, a constant's value, or (module, name) of ours that it imports."""
    for node in _tree(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(OURS):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return str(node.module), alias.name
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node.value
    return None


def _of_class(module: str, found: ast.ClassDef) -> Options:
    inherited: Options = {}
    for base in found.bases:
        if isinstance(base, ast.Name):
            inherited = {**inherited, **_of(module, base.id)}
    if any("dataclass" in ast.unparse(decorator) for decorator in found.decorator_list):
        return inherited | dict(_fields(module, found))
    made = next((node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    if made is None:
        return inherited
    # a constructor has for itself its own options, and those that it passes on by name
    decided = {argument.arg for argument in [*made.args.args, *made.args.kwonlyargs]}
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call)]
    supers = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
    decided |= {word.arg for call in supers for word in call.keywords if word.arg}
    passed_on = {key: value for key, value in inherited.items() if made.args.kwarg and key not in decided}
    return dict(_defaults(module, made)) | passed_on


def _fields(module: str, found: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for node in found.body:
        if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
            continue
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield from _literal(module, node.target.id, node.value)


def _defaults(module: str, made: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    arguments, defaults = made.args.args + made.args.kwonlyargs, made.args.defaults + made.args.kw_defaults
    for argument, default in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True):
        if default is not None:
            yield from _literal(module, argument.arg, default)


def _literal(module: str, name: str, default: ast.expr) -> Iterator[tuple[str, Any]]:
    try:
        value = ast.literal_eval(_meant(module, default))
    except ValueError:
        return  # made when it is needed
    yield name, list(value) if isinstance(value, tuple) else value


def _meant(module: str, default: ast.expr) -> ast.expr:
    """Resolve a constant (``LIMIT``) or another class's default (``Rule.gamma``), else return the default itself."""
    if isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name):
        known = _of(module, default.value.id)
        return ast.Constant(known[default.attr]) if default.attr in known else default
    if not isinstance(default, ast.Name):
        return default
    named = _named(module, default.id)
    if isinstance(named, tuple):
        return _meant(named[0], ast.Name(named[1]))
    return named if isinstance(named, ast.expr) else default


class Filled(NamedTuple):
    """Defaults that one part was given: its place, its target, its options."""

    path: Place
    target: str
    added: Options


def fill(cfg: DictConfig) -> list[Filled]:
    """Add to each part of ``cfg`` with a ``_target_`` of ours the options that it does not state, in place."""
    found = list(_left_out((), OmegaConf.to_container(cfg, resolve=False)))
    for path, _, added in found:
        part = _part(cfg, path)
        with open_dict(part):
            part.update(added)
    return found


def take_back(cfg: DictConfig, filled: Iterable[Filled], typed: Iterable[str]) -> None:
    """Remove the defaults that ``fill`` added to a part which is another one now; keep the keys that were ``typed``."""
    kept = set(typed)
    for path, target, added in filled:
        part = _part(cfg, path)
        if isinstance(part, DictConfig) and part.get("_target_") != target:
            with open_dict(part):
                for key in added:
                    if ".".join(map(str, (*path, key))) not in kept:
                        part.pop(key, None)


def _part(cfg: DictConfig, path: Place) -> Any:
    """The part of a configuration at a path; None where it was removed."""
    part: Any = cfg
    for key in path:
        there = range(len(part)) if isinstance(part, ListConfig) else part if isinstance(part, DictConfig) else ()
        part = part[key] if key in there else None
    return part


def _left_out(path: Place, plain: Any) -> Iterator[Filled]:
    parts = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    target = str(plain.get("_target_")) if isinstance(plain, dict) else ""
    if added := {option: default for option, default in options(target).items() if option not in plain}:
        yield Filled(path, target, added)
    for key, part in parts:
        yield from _left_out((*path, key), part)
