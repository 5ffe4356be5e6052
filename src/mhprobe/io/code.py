"""Digest of other people's code and files for keys of caches: modules by contents, installed packages by versions."""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mhprobe.io.nested import leaves

_OURS = Path(__file__).parents[1]
_PYTHONS = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
_distributions = functools.cache(importlib.metadata.packages_distributions)


def code_digests(*things: Any) -> dict[str, str]:
    """SHA-256 of each user module, and version of each installed package, that ``things`` come from or import.

    things: classes, functions, instances, partials, names of modules.
    """
    digests: dict[str, str] = {}
    versions: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [name for thing in things for name in _modules(thing)]
    while waiting:
        name = waiting.pop()
        package = name.partition(".")[0]
        if name in seen or package in versions:
            continue
        seen.add(name)
        if package != _OURS.name and (home := _file(package)) and _INSTALLED & {*home.parts}:
            versions[package] = _version(package) or file_digest(home)
        elif (file := _file(name)) and file.is_relative_to(_OURS):
            waiting += (
                other for other in _imported(name, file) if other.partition(".")[0] != _OURS.name
            )
        elif file and not _INSTALLED & {*file.parts}:
            digests[name] = file_digest(file)
            waiting += _imported(name, file)
    return dict(sorted({**digests, **versions}.items()))


def stands_on(config: Any) -> dict[str, dict[str, str]]:
    """Digests of the user's ``code`` that a configuration names as ``_target_``, and of the ``files`` that it names."""
    texts = [
        (path[-1], value) for path, value in leaves(config, lists=True) if isinstance(value, str)
    ]
    targets = [_module_of(text) for key, text in texts if key == "_target_"]
    files = {text: file_digest(text) for _, text in texts if is_file(text)}
    return {"code": code_digests(*targets), "files": dict(sorted(files.items()))}


ABOVE = ("lab", "pages")  # wings that nothing which measures a network imports


@functools.cache
def our_digest(without: tuple[str, ...] = ()) -> str:
    """SHA-256 of this package's code: a checkout may be edited under one version.

    without: wings whose code does not count, such as ``ABOVE`` for what was measured of a network.
    """
    files = sorted(_OURS.rglob("*.py"))
    counted = [path for path in files if path.relative_to(_OURS).parts[0] not in without]
    return hashlib.sha256(b"".join(path.read_bytes() for path in counted)).hexdigest()


def classes_in(package: Any, base: type) -> list[Any]:
    """Concrete classes derived from ``base`` that the modules of a package define. Imports all modules."""
    classes = []
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for item in vars(importlib.import_module(info.name)).values():
            if isinstance(item, type) and item.__module__ == info.name and issubclass(item, base):
                classes += [] if inspect.isabstract(item) else [item]
    return classes


def is_file(text: str) -> bool:
    """Return True if the text of a configuration names an existing file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def file_digest(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _modules(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, functools.partial):
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            yield from () if isinstance(part, str) else _modules(part)
    elif isinstance(thing, type):
        yield from (base.__module__ for base in thing.__mro__)
    elif hasattr(thing, "__qualname__"):
        yield str(thing.__module__)
    else:
        yield from _modules(type(thing))


def _file(name: str) -> Path | None:
    """The file of a module; None for one of Python's own, and for what is no module."""
    try:
        spec = importlib.util.find_spec(name)
        origin = None if spec is None else spec.origin
    except (ImportError, ValueError, AttributeError):  # a script is __main__, which has no spec
        origin = getattr(sys.modules.get(name), "__file__", None)
    path = Path(origin or "")
    pythons = not _INSTALLED & {*path.parts} and any(
        path.is_relative_to(place) for place in _PYTHONS
    )
    return None if pythons or path.suffix != ".py" or not path.is_file() else path


def _version(package: str) -> str | None:
    """The version of an installed package, which its distribution may call by another name."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = _distributions().get(package, [])
        return importlib.metadata.version(names[0]) if names else None


def _imported(name: str, file: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it; of ``from a import b`` both a and a.b, which may be one."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _module_of(target: str) -> str:
    """``package.module`` of what is at the dotted path ``target``; imported where it is not yet."""
    name = target
    while "." in name:
        name = name.rpartition(".")[0]
        try:
            return importlib.import_module(name).__name__
        except ImportError:
            continue
    return name
