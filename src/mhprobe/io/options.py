"""Check options by the types that a constructor names: Python would take some for something else.

``True`` is a 1, 1.5 steps may be sliced, NaN fails every comparison with a limit and so passes it.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union

from mhprobe.errors import UserError, quoted

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    Path: "a path",
    type(None): "null",
}


def refuse_misfits(make: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """UserError for an option of another type than ``make`` says. where: the options' key or argument, for the error.

    make: a class or a function. What its annotations leave open is left to it.
    """
    hints = types_of(make)
    for name, value in options.items():
        if name in hints and not fits(value, hints[name]):
            raise UserError(f"{where}.{name}: expected {_said(hints[name])}, got {quoted(value)}.")


@functools.cache
def types_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Option -> its type, of a function or of a class and the base classes that it passes options on to."""
    made = [vars(base).get("__init__") for base in reversed(make.__mro__)] if isinstance(make, type) else [make]
    found: dict[str, Any] = {}
    for each in filter(None, made):
        try:
            found |= typing.get_type_hints(each)
        except (NameError, TypeError, AttributeError):  # a type that is imported for the type checker alone
            continue
    return {name: hint for name, hint in found.items() if name != "return"}


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value is of a type, and for types that are not plain values."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in typing.get_args(hint))
    if origin is Callable:
        return callable(value)
    if origin is Literal:  # which of the names it is, the class says: an array of them would be compared one by one
        return value is None or isinstance(value, str | int | float)
    if hint in (int, float):  # NumPy's are as good
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str | Path)
    if hint in _WORDS:
        return type(value) is hint
    if _is_list(origin):
        inner = (*typing.get_args(hint), Any)[0]
        several = isinstance(value, Collection) and not isinstance(value, str | Mapping)
        return several and all(fits(each, inner) for each in value)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        inner = (*typing.get_args(hint), Any, Any)[1]
        return isinstance(value, Mapping) and all(fits(each, inner) for each in value.values())
    return True


def _is_list(origin: Any) -> bool:
    return inspect.isclass(origin) and issubclass(origin, Sequence | Collection) and not issubclass(origin, Mapping)


def _said(hint: Any) -> str:
    """The type in words."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_said, typing.get_args(hint))))
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if _is_list(typing.get_origin(hint)):
        return "a list"
    return _WORDS.get(hint, "something else")
