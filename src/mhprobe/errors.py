"""UserError, the one exception for bad input, and the checks of arguments that raise it.

Commands print it on one line and exit with code 2; other exceptions keep their traceback.
Write it as: what, where, expected, got, next step.
"""

import contextlib
import difflib
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args

Positive = Annotated[int, 1]  # types of options: the number is the least that is allowed
Natural = Annotated[int, 0]


class UserError(ValueError):
    """Bad input.

    The message is one line that says how to go on; line breaks in it become spaces, and bytes of
    names that are no UTF-8 become \\xNN.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())
        super().__init__(line.encode(errors="backslashreplace").decode())


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn a UserError in a command's main into a line on stderr and exit code 2."""
    try:
        yield
    except UserError as error:
        print(f"mhprobe: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def refusing(
    say: Callable[[Exception], str], kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Turn an error of these kinds into a UserError with the message that ``say`` makes of it; a UserError stays."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(say(error)) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, with the next if it ends in a colon; its type if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return " ".join(lines[: 1 + lines[0].endswith(":")]).rstrip(
        ".:"
    )  # "Error(s) in loading ...:" says nothing yet


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause or context, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_of(where: str, option: str, got: object, choices: Any) -> None:
    """Raise UserError unless an option's value is one of those of its type, a ``Literal``."""
    if not any(type(got) is type(value) and got == value for value in get_args(choices)):
        raise UserError(
            f"{where}: {option} is one of {', '.join(map(str, get_args(choices)))}, got "
            f"{quoted(got)}."
        )


def whole_number(where: str, got: object, least: int = 0, none: str = "") -> None:
    """Raise UserError unless an option's value is a whole number of at least ``least``; True and 1.0 are none.

    none: meaning of None, if that is a value, too.
    """
    fits = type(got) is int and got >= least
    if not fits and not (got is None and none):
        other = f", or None for {none}" if none else ""
        raise UserError(
            f"{where}: expected a whole number of at least {least}{other}, got {quoted(got)}."
        )


def nearest(name: object, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "did you mean ...? " with the name that is most like ``name``; "" if none is."""
    close = difflib.get_close_matches(str(name), [*names], n=1, cutoff=cutoff)
    return f"did you mean {close[0]}? " if close else ""


def short(text: str, most: int) -> str:
    """Shorten a text to ``most`` characters, with dots at the end.

    >>> short("twelve heads", 12), short("thirteen heads", 12)
    ('twelve heads', 'thirteen ...')
    """
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def quoted(value: object, most: int = 60) -> str:
    """Return an argument as Python writes it, shortened."""
    return short(repr(value), most)


_PLAIN: dict[
    Any, tuple[str, Any]
] = {  # by type: its name in messages, and the classes of its values
    bool: ("true or false", bool),
    int: ("a whole number", Integral),  # NumPy's are as good
    float: ("a finite number", Real),
    str: ("a text", str),
    Path: ("a path", str | Path),
    type(None): ("null", type(None)),
}


_PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def refuse_misfits(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    where: str,
    by_position: Sequence[Any] = (),
) -> None:
    """Raise UserError for an option that does not fit the annotations of ``make``, a class or a function.

    where: the options' key or argument, for the message. by_position: options of a class without
    names. Python itself would accept ``True`` as 1, slices of 1.5 steps, and NaN, which fails every
    comparison with a limit.
    """
    hints = types_of(make)
    named = (
        zip(list(inspect.signature(make.__init__).parameters)[1:], by_position, strict=False)
        if by_position
        else ()
    )
    for name, value in (*named, *options.items()):
        hint, *least = (
            get_args(of) if typing.get_origin(of := hints.get(name)) is Annotated else [of]
        )
        if typing.get_origin(hint) is Literal:
            one_of(where, name, value, hint)
        elif name in hints and not fits(value, hint):
            raise UserError(f"{where}.{name}: expected {_in_words(hint)}, got {quoted(value)}.")
        elif least:
            whole_number(f"{where}: {name}", value, *least)


@functools.cache
def types_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of options, of a function, or of a class and its base classes."""
    functions = (
        [vars(base).get("__init__") for base in reversed(make.__mro__)]
        if isinstance(make, type)
        else [make]
    )
    hints: dict[str, Any] = {}
    for function in filter(None, functions):
        with contextlib.suppress(
            NameError, TypeError, AttributeError
        ):  # a type imported for the type checker alone
            hints |= typing.get_type_hints(function, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value fits a type, and for types that are not plain values."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    origin, parts = typing.get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, parts[0]) and value >= parts[1]
    if hint in _PLAIN:
        return _is_plain(value, hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Callable:
        return callable(value)
    if origin is Literal:  # the class checks the name
        return value is None or isinstance(value, str | int | float)
    if _is(origin, Collection):
        return _several_fit(value, _is(origin, Mapping), parts)
    if _is(hint, object) and hint.__module__.startswith(
        "mhprobe."
    ):  # a part of ours, no plain value
        return not isinstance(value, str | int | float | list | tuple)
    return True


def _several_fit(value: Any, named: bool, parts: Sequence[Any]) -> bool:
    """Return True for a collection whose items fit. named: it is a mapping. parts: types of keys and items."""
    if named:
        items = value.values() if isinstance(value, Mapping) else None
        of = parts[1] if len(parts) > 1 else Any
    else:
        several = isinstance(value, Collection) and not isinstance(value, str | Mapping)
        items = value if several else None
        of = parts[0] if parts else Any
    return items is not None and all(fits(item, of) for item in items)


def _is_plain(value: Any, hint: Any) -> bool:
    if isinstance(value, bool) and hint is not bool:  # True is Integral
        return False
    return isinstance(value, _PLAIN[hint][1])


def _is(origin: Any, base: type) -> bool:
    return inspect.isclass(origin) and issubclass(origin, base)


def _in_words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, parts)))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is Annotated:
        return f"{_in_words(parts[0])} of at least {parts[1]}"
    if _is(origin, Mapping):
        return "names with a value each"
    if _is(origin, Collection):
        of = _in_plural(parts[0] if parts else None)
        return f"a list of {of}" if of else "a list"
    if _is(hint, object) and hint.__module__.startswith("mhprobe."):
        return f"a {hint.__name__} (on the command line a part with a _target_)"
    if origin is Callable:
        return "a class or function"
    return _PLAIN.get(hint, ("something else", None))[0]


def _in_plural(hint: Any) -> str:
    """Several values of a type, in words; "" of a type that has none."""
    origin, parts = typing.get_origin(hint), get_args(hint)
    if _is(origin, Collection) and not _is(origin, Mapping):
        of = _in_plural(parts[0] if parts else None)
        return f"lists of {of}" if of else "lists"
    return _PLURAL.get(hint, "")


class HeadsMixed(UserError):
    """A model that no family can support: its heads have no channels of their own."""
