"""Attributes that are changed for a while, and put back whatever happens."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def meanwhile(things: Iterable[Any], **attributes: Any) -> Iterator[None]:
    """Give these attributes to each of some objects inside a with block.

    >>> thing = contextlib.nullcontext(1)
    >>> with meanwhile([thing], enter_result=2):
    ...     thing.enter_result
    2
    >>> thing.enter_result
    1
    """
    before = [(thing, name, getattr(thing, name)) for thing in things for name in attributes]
    try:
        for thing, name, _ in before:
            setattr(thing, name, attributes[name])
        yield
    finally:
        for change in before:
            setattr(*change)
