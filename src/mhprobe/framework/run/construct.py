"""Build a part of the configuration with a ``_target_``; one line names a wrong key or value."""

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from mhprobe.errors import UserError, nearest, refuse_misfits, short
from mhprobe.framework.run.constructors import OURS, PACKAGE, defaults_of
from mhprobe.io.moved import renamed
from mhprobe.io.nested import leaves

# errors of constructors for a wrong key or value
WRONG = (
    TypeError,
    ImportError,
    ValueError,
    ArithmeticError,
    AttributeError,
    LookupError,
    AssertionError,
)


def construct(part: Any, where: str, **extra: Any) -> Any:
    """Return what Hydra's instantiate makes of a part; None for None.

    where: the part's key, for a UserError. A ``_target_`` may have its name of before the wings.
    """
    try:
        part = renamed(part)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if part is not None:
        refuse_plain(part, where)
        refuse_types(part, where)
    try:
        return instantiate(
            part, _convert_="all", **extra
        )  # plain lists: timm does not take OmegaConf's
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise with_key(cause, part, where) from None
        if cause is error:  # of Hydra: it called nothing
            raise UserError(f"{where}: {_line(error)}") from error
        if isinstance(cause, WRONG):
            _refuse_unknown(part, where, cause)
            options = [
                (".".join(path), value)
                for path, value in leaves(part)
                if not path[-1].startswith("_")
            ]
            settings = (
                " ".join(f"{key}={value}" for key, value in options if value != {}) or "no option"
            )
            raise UserError(f"{where}: {_line(cause)} (given {short(settings, 300)})") from error
        raise
    except TypeError as error:  # Hydra's own, about a key like _partial_
        raise UserError(f"{where}: {_line(error)}") from error


UNKNOWN = re.compile(r"unexpected keyword arguments?:? [`'](\w+)[`']", re.IGNORECASE)


def _refuse_unknown(part: Any, where: str, error: BaseException) -> None:
    """Raise UserError for a name that a part of ours has not, with the nearest that there is."""
    for path, target in leaves(part):
        place, target = ".".join([where, *path[:-1]]), str(target)
        if path[-1] != "_target_" or not target.startswith(OURS):
            continue
        holder = functools.reduce(lambda inner, name: inner[name], path[:-1], part)
        if isinstance(error, ImportError | AttributeError):
            _refuse_absent(target, f"{place}._target_")
        else:
            refuse_option(error, get_object(target), place, holder)


def refuse_option(
    error: BaseException, make: Callable[..., Any], where: str, given: Collection[str]
) -> None:
    """Raise UserError if an error of a constructor is about one of the given options that it does not know."""
    unknown = UNKNOWN.search(str(error))
    if unknown is None or unknown[1] not in given:
        return
    own = inspect.signature(make).parameters.values()
    named = [one.name for one in own if one.kind is not one.VAR_KEYWORD]
    names = [*dict.fromkeys([*named, *defaults_of(f"{make.__module__}.{make.__qualname__}")])]
    raise UserError(
        f"{where}.{unknown[1]}: no such option; {nearest(unknown[1], names)}"
        f"{make.__name__} has {', '.join(names) or 'none'}."
    ) from error


def _refuse_absent(target: str, where: str) -> None:
    """Raise UserError for a module or class of ours that there is not."""
    place = PACKAGE
    parent, *steps = target.split(".")
    for name in steps:
        names = [file.stem for file in place.iterdir() if not file.stem.startswith((".", "_"))]
        place = place / name
        if place.with_suffix(".py").is_file():
            names = list(vars(importlib.import_module(f"{parent}.{name}")))
        elif name in names:
            parent = f"{parent}.{name}"
            continue
        else:
            there = nearest(name, names) or f"{parent} has {', '.join(sorted(names))}. "
            raise UserError(f"{where}: {parent} has no {name}; {there}got {target}.")
        if steps[-1] not in names:
            there = nearest(steps[-1], names)
            raise UserError(f"{where}: {parent}.{name} has no {steps[-1]}; {there}got {target}.")
        return


def refuse_plain(part: Any, where: str) -> None:
    """Raise UserError for a value where a part belongs."""
    if not (isinstance(part, Mapping) and "_target_" in part):
        raise UserError(
            f"{where}: expected a part with a _target_, as in conf/, got {short(str(part), 300)}."
        )


def refuse_types(part: Any, where: str) -> None:
    """Raise UserError for an option of another type than the constructor names, in the part or a part inside."""
    for key, value in part.items() if isinstance(part, Mapping) else ():
        refuse_types(value, f"{where}.{key}")
    if isinstance(part, Mapping) and str(part.get("_target_")).startswith(OURS):
        try:
            make = get_object(part["_target_"])
        except Exception:  # instantiate raises
            return
        inner = {
            path[0]
            for path, _ in leaves(part, lists=True)
            if path[-1] == "_target_" and len(path) > 1
        }
        refuse_misfits(make, {key: value for key, value in part.items() if key not in inner}, where)


def naming_keys(make: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return a partial that raises UserError, naming a wrong key or value, when it is called."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except UserError as error:
            raise with_key(error, getattr(make, "keywords", {}), where) from error.__cause__
        except WRONG as error:
            refuse_option(error, getattr(make, "func", make), where, getattr(make, "keywords", {}))
            raise UserError(f"{where}: {_line(error)}") from error

    return call


@contextlib.contextmanager
def keyed(part: Mapping[str, Any], where: str = "") -> Iterator[None]:
    """Give a UserError inside the keys of ``part``; see ``with_key``."""
    try:
        yield
    except UserError as error:
        raise with_key(error, part, where) from error.__cause__  # it may be the same error


def with_key(error: UserError, part: Any, where: str) -> UserError:
    """Return the error with keys: of the option or part that it begins with, and of options that it advises."""
    text = str(error)
    option = re.match(r"\w+(?=[:.])", text)
    places = [
        path[:n] for path, _ in leaves(part) for n in range(1, len(path) + 1)
    ]  # keys of options and parts
    if place := option and next(
        (place for place in sorted(places, key=len) if place[-1] == option[0]), None
    ):
        text = ".".join(filter(None, [where, *place[:-1], text]))
    elif option and where.endswith(f".{option[0]}"):  # it begins with the part's name
        text = where.removesuffix(option[0]) + text
    if where and isinstance(part, Mapping) and part:
        named = "|".join(re.escape(str(key)) for key in part)
        text = re.sub(rf"(?<= )((?:{named})(?:\.\w+)*)(?==)", rf"{where}.\1", text)
    return UserError(text) if text != str(error) else error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
