"""With blocks that can be entered as often as one likes.

Somebody who keeps ``off = gates.masked(mask)`` means to write ``with off:`` several times. A block
that ``contextlib.contextmanager`` makes can be entered once; the second time Python raises an
AttributeError.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

P = ParamSpec("P")


class Reentrant(contextlib.ContextDecorator):
    """A with block that can be entered again, and inside itself. make: returns it for one time."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        block = self._make()
        block.__enter__()
        self._open.append(block)

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)


def again_and_again(make: Callable[P, Iterator[None]]) -> Callable[P, Reentrant]:
    """Turn a generator into a function that returns a ``Reentrant``."""
    once = contextlib.contextmanager(make)

    @functools.wraps(make)
    def block(*args: P.args, **kwargs: P.kwargs) -> Reentrant:
        return Reentrant(functools.partial(once, *args, **kwargs))

    return block
