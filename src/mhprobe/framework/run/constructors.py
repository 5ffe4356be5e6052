"""Options and docstrings of our constructors, parsed from their files: importing them would take seconds (torch).

A default stands once, in the constructor. ``fill`` adds it where a yaml leaves it out, so that
``--cfg job`` shows it and an override needs no ``+``. Only literals, and names for literals, are
filled in.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

OURS = "mhprobe."
PACKAGE = Path(__file__).parents[2]
Options = dict[str, Any]
Place = tuple[str | int, ...]  # of keys


@functools.cache
def defaults_of(target: str) -> Options:
    """Return the options and defaults of our class or function, with those passed on to a base class; else nothing."""
    module, _, name = target.rpartition(".")
    return _of(module, name) if _is_ours(module) else {}


def docstrings(target: str) -> list[tuple[str, str]]:
    """Return (name, docstring) of a target, and of the base classes to which it passes options on."""
    module, _, name = target.rpartition(".")
    node = _named(module, name) if _is_ours(module) else None
    if isinstance(node, tuple):
        return docstrings(".".join(node))
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return []
    bases = [
        base.id
        for base in getattr(node, "bases", [])
        if isinstance(base, ast.Name) and _of(module, base.id)
    ]
    pairs = [(target, text)] if (text := ast.get_docstring(node)) else []
    return pairs + [pair for base in bases for pair in docstrings(f"{module}.{base}")]


def _is_ours(module: str) -> bool:
    return module.startswith(OURS) and _file(module).is_file()


def _file(module: str) -> Path:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _of(module: str, name: str) -> Options:
    node = _named(module, name)
    if isinstance(node, tuple):
        return _of(*node)
    if isinstance(node, ast.FunctionDef):
        return dict(_defaults(module, node))
    return _of_class(module, node) if isinstance(node, ast.ClassDef) else {}


def _named(module: str, name: str) -> ast.stmt | ast.expr | tuple[str, str] | None:
    """Resolve a name in a file: a definition, a constant's value, or (module, name) of ours that it imports."""
    for node in _tree(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(OURS):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return str(node.module), alias.name
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return node.value
    return None


def _of_class(module: str, node: ast.ClassDef) -> Options:
    inherited: Options = {}
    for base in node.bases:
        if isinstance(base, ast.Name):
            inherited |= _of(module, base.id)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return inherited | dict(_fields(module, node))
    init = _constructor(node)
    if init is None:
        return inherited
    here = dict(_defaults(module, init))
    if init.args.kwarg is None:
        return here
    decided = _decided(init)
    return here | {key: value for key, value in inherited.items() if key not in decided}


def _fields(module: str, node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a dataclass that have a literal as default."""
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        if part.value is not None and "ClassVar" not in ast.unparse(part.annotation):
            yield from _literal(module, part.target.id, part.value)


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return part
    return None


def _decided(init: ast.FunctionDef) -> set[str]:
    """Return the options that a constructor sets itself, or passes on by name, and so does not inherit."""
    decided = {argument.arg for argument in [*init.args.args, *init.args.kwonlyargs]}
    calls = [part for part in ast.walk(init) if isinstance(part, ast.Call)]
    supers = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
    return decided | {word.arg for call in supers for word in call.keywords if word.arg}


def _defaults(module: str, function: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    args = function.args
    arguments, defaults = args.args + args.kwonlyargs, args.defaults + args.kw_defaults
    for argument, default in zip(
        arguments[len(arguments) - len(defaults) :], defaults, strict=True
    ):
        if default is not None:
            yield from _literal(module, argument.arg, default)


def _literal(module: str, name: str, default: ast.expr) -> Iterator[tuple[str, Any]]:
    try:
        value = ast.literal_eval(_meant(module, default))
    except ValueError:
        return  # no literal
    yield name, list(value) if isinstance(value, tuple) else value


def _meant(module: str, default: ast.expr) -> ast.expr:
    """Resolve a constant (``LIMIT``) or another class's default (``Rule.gamma``), else return the default itself."""
    if isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name):
        fields = _of(module, default.value.id)
        return ast.Constant(fields[default.attr]) if default.attr in fields else default
    if not isinstance(default, ast.Name):
        return default
    named = _named(module, default.id)
    if isinstance(named, tuple):
        return _meant(named[0], ast.Name(named[1]))
    return named if isinstance(named, ast.expr) else default


def fill(cfg: DictConfig) -> None:
    """Add to each part of ``cfg`` with a ``_target_`` of ours the defaults of its missing options, in place."""
    for path, stated in _parts((), OmegaConf.to_container(cfg, resolve=False)):
        defaults = defaults_of(str(stated["_target_"]))
        part = _part(cfg, path)
        with open_dict(part):
            part.update({key: value for key, value in defaults.items() if key not in stated})


def take_back(cfg: DictConfig, before: DictConfig, typed: Iterable[str]) -> None:
    """Remove defaults of a constructor from each part that has another target than ``before``.

    Keys that were ``typed`` stay.
    """
    kept = set(typed)
    for path, stood in _parts((), OmegaConf.to_container(before, resolve=False)):
        part = _part(cfg, path)
        if not isinstance(part, DictConfig) or part.get("_target_") == stood["_target_"]:
            continue
        with open_dict(part):
            for key, default in defaults_of(str(stood["_target_"])).items():
                if stood.get(key) == default and ".".join(map(str, (*path, key))) not in kept:
                    part.pop(key, None)


def _part(cfg: DictConfig, path: Place) -> Any:
    """Return the part of a configuration at a path; None where it was removed."""
    part: Any = cfg
    for key in path:
        keys = (
            range(len(part))
            if isinstance(part, ListConfig)
            else part
            if isinstance(part, DictConfig)
            else ()
        )
        part = part[key] if key in keys else None
    return part


def _parts(path: Place, plain: Any) -> Iterator[tuple[Place, Options]]:
    """Yield each part with a ``_target_``, and its place, a part before those inside it."""
    inside: Iterable[tuple[str | int, Any]] = ()
    if isinstance(plain, dict):
        inside = plain.items()
        if "_target_" in plain:
            yield path, plain
    elif isinstance(plain, list):
        inside = enumerate(plain)
    for key, part in inside:
        yield from _parts((*path, key), part)
