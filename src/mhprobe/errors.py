"""The one exception that is the user's to mend, and the checks of arguments that raise it.

Entry points print its text on one line and exit with code 2; everything else keeps its traceback.
Write it as: what, where, expected, got, next step.
"""

import contextlib
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args


class UserError(ValueError):
    """Bad input. The message is one line that says how to go on, whatever the file that it quotes holds."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """End the process with exit code 2 after a line on stderr if a UserError comes up: for a command's main."""
    try:
        yield
    except UserError as error:
        print(f"mhprobe: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from or in, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_of(where: str, option: str, got: object, known: Any) -> None:
    """UserError unless an option's value is one of those that its type, a ``Literal``, names."""
    if not any(type(got) is type(each) and got == each for each in get_args(known)):
        raise UserError(f"{where}: {option} is one of {', '.join(map(str, get_args(known)))}, got {quoted(got)}.")


def whole_number(where: str, got: object, least: int = 0, most: int | None = None, none: str = "") -> None:
    """UserError unless an option's value is a whole number of at least ``least``; True and 1.0 are none.

    none: what None stands for, where it is a value, too.
    """
    fits = type(got) is int and got >= least and (most is None or got <= most)
    if not fits and not (got is None and none):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        other = f", or None for {none}" if none else ""
        raise UserError(f"{where}: expected a whole number {limits}{other}, got {quoted(got)}.")


def short(text: str, most: int) -> str:
    """For a message of one line: the text, or as much of it as leaves room for dots within ``most`` characters.

    >>> short("twelve heads", 12), short("thirteen heads", 12)
    ('twelve heads', 'thirteen ...')
    """
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def quoted(value: object, most: int = 60) -> str:
    """Return an argument as Python writes it, shortened."""
    return short(repr(value), most)


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    Path: "a path",
    type(None): "null",
}


def refuse_misfits(
    make: Callable[..., Any], options: Mapping[str, Any], where: str, by_position: Sequence[Any] = ()
) -> None:
    """UserError for an option of another type than ``make`` says. where: the options' key or argument, for the error.

    make: a class or a function. by_position: options of a class that are given without their names. What annotations
    leave open is left to ``make``. Python itself would take some values for something else: ``True`` is a 1, 1.5 steps
    may be sliced, NaN fails every comparison with a limit and so passes it.
    """
    hints = types_of(make)
    named = zip(list(inspect.signature(make.__init__).parameters)[1:], by_position, strict=False) if by_position else ()
    for name, value in (*named, *options.items()):
        if name in hints and not fits(value, hints[name]):
            raise UserError(f"{where}.{name}: expected {_in_words(hints[name])}, got {quoted(value)}.")


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


def _in_words(hint: Any) -> str:
    """The type in words."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, typing.get_args(hint))))
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if _is_list(typing.get_origin(hint)):
        return "a list"
    return _WORDS.get(hint, "something else")


class HeadsMixed(UserError):
    """Refused because no head of the model has a slice of channels of its own: no family could ever find one."""
