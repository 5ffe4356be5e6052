"""A source knows where images are and how to decode them.

A new one is a class in its own file and a conf/data yaml.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from mhprobe.errors import quoted
from mhprobe.io.readings import Reading
from mhprobe.io.spelling import spelled

Wanted = Mapping[str, np.ndarray]  # positions of images by split, ascending; a split may be absent


@dataclass(frozen=True)
class Contents:
    """Contents of a source, known before any image is decoded.

    class_names: empty where nobody has labelled the images.
    labels: split ("train", "test") -> (N,) int64 class numbers; the order is the images' order in
    the split.
    size: (height, width) of every decoded image.
    images: starts a walk over all images, in any order: (split, position in it, (height, width,
    channels) uint8).
    some: the same of the wanted images alone, so that no other is decoded; None where it is cheap to
    walk over all.
    objects: each has a fourth part, (height, width) uint8: what each pixel shows, 0 for background.
    readings: how the source was interpreted; a walk over the images may add to it.
    channels: of every image.
    may_lack: images that cannot be read are left out of the walk; their places are closed up.
    """

    class_names: tuple[str, ...]
    labels: dict[str, np.ndarray]
    size: tuple[int, int]
    images: Callable[[], Iterator[tuple[Any, ...]]]
    objects: bool = False
    readings: list[Reading] = field(default_factory=list)
    may_lack: bool = False
    channels: int = 3
    some: Callable[[Wanted], Iterator[tuple[Any, ...]]] | None = None

    def walk(self, wanted: Wanted | None = None) -> Iterator[tuple[Any, ...]]:
        """Walk over the wanted images, as ``images`` does over all; None: all."""
        if wanted is not None and self.some is not None:
            yield from self.some(wanted)
            return
        for split, position, *parts in self.images():
            if is_wanted(wanted, split, position):
                yield split, position, *parts


def is_wanted(wanted: Wanted | None, split: str, position: int) -> bool:
    """Return True for an image that is wanted; None: all are."""
    if wanted is None:
        return True
    positions = wanted.get(split, np.zeros(0, dtype=np.int64))
    at = int(np.searchsorted(positions, position))
    return at < len(positions) and int(positions[at]) == position


class Source(Protocol):
    name: str

    def key(self) -> dict[str, Any]:
        """Return plain values that the decoded images depend on: another key is another cache.

        Cheap.
        """

    def scan(self) -> Contents:
        """List everything; every fault that can be seen without decoding raises UserError here."""


class Scan:
    """The contents of a source, listed when they are first asked for, and once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._contents: Contents | None = None

    def __call__(self) -> Contents:
        if self._contents is None:
            self._contents = self.source.scan()
        return self._contents

    def __reduce__(self) -> Any:
        return Scan, (self.source,)  # a walk cannot go to another process


def other_classes(theirs: Sequence[str], ours: Sequence[str]) -> str | None:
    """Say how many classes a file or data set and the data have, and where names differ first; None for the same."""
    pairs = enumerate(zip_longest(map(quoted, theirs), map(quoted, ours), fillvalue="none"))
    first = next(
        (
            f"class {at}: {a} there, {b} in the data"
            for at, (a, b) in pairs
            if spelled(a) != spelled(b)
        ),
        None,
    )
    return (
        first and f"{len(theirs)} classes, the data has {len(ours)}; they differ first in {first}."
    )
