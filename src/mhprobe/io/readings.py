"""Ways in which an input was interpreted: said once in the log, kept where they were read, shown on pages.

A file of weights does not say which colours the network saw, nor a folder in which order its
classes are. What was taken for such a thing is a ``Reading``: it names its source, whether it is a
guess, and the option that says otherwise.
"""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

LEFT_OUT = "left out"  # what a reading of files that were not taken is of


class Reading(NamedTuple):
    """One way in which an input was interpreted.

    what: the thing that was read, e.g. "mean and std". taken: its value in words. source: where the
    value is from. guess: True if it can be wrong. option: what the user gives to say otherwise.
    """

    what: str
    taken: str
    source: str
    guess: bool = False
    option: str = ""

    def __str__(self) -> str:
        text = f"{self.what}: {self.taken}, {self.source}"
        if not self.guess:
            return text
        return f"{text} (a guess{f'; give {self.option} if it is wrong' if self.option else ''})"

    def plain(self) -> dict[str, Any]:
        """Return its parts by name, for JSON."""
        return dict(self._asdict())


def log_readings(readings: Iterable[Reading], log: logging.Logger, where: str) -> None:
    """Log each reading in one line: guesses and what is left out as warnings, others as information."""
    for reading in readings:
        loud = reading.guess or reading.what == LEFT_OUT
        log.log(logging.WARNING if loud else logging.INFO, "%s: %s.", where, reading)


def restored(plain: Iterable[Any]) -> tuple[Reading, ...]:
    """Return readings from what ``plain`` gave; damaged ones are left out."""
    names = set(Reading._fields)
    return tuple(Reading(**one) for one in plain if isinstance(one, dict) and set(one) == names)
