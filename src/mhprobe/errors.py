"""The one exception that is the user's to mend.

Entry points print its text on one line and exit with code 2; everything else keeps its traceback.
Write it as: what, where, expected, got, next step.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, get_args


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


class HeadsMixed(UserError):
    """Refused because no head of the model has a slice of channels of its own: no family could ever find one."""
