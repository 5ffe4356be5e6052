"""The one exception that is the user's to mend.

Entry points print its text on one line and exit with code 2; everything else keeps its traceback.
Write it as: what, where, expected, got, next step.
"""

from __future__ import annotations

from typing import Any, get_args


class UserError(ValueError):
    """Bad input. The message is one line that says how to go on, whatever the file that it quotes holds."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def one_of(where: str, option: str, got: object, known: Any) -> None:
    """UserError unless an option's value is one of those that its type, a ``Literal``, names."""
    if got not in get_args(known):
        raise UserError(f"{where}: {option} is one of {', '.join(get_args(known))}, got {got!r}.")


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
