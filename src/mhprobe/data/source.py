"""A source knows where images are and how to decode them.

A new one is a class in its own file and a conf/data yaml.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from mhprobe.errors import quoted
from mhprobe.io.readings import Reading


@dataclass(frozen=True)
class Contents:
    """Contents of a source, known before any image is decoded.

    class_names: empty where nobody has labelled the images.
    labels: split ("train", "test") -> (N,) int64 class numbers; the order is the images' order in
    the split.
    size: (height, width) of every decoded image.
    images: starts a walk over all images, in any order: (split, position in it, (height, width,
    channels) uint8).
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


class Source(Protocol):
    name: str

    def key(self) -> dict[str, Any]:
        """Return plain values that the decoded images depend on: another key is another cache.

        Cheap.
        """

    def scan(self) -> Contents:
        """List everything; every fault that can be seen without decoding raises UserError here."""


def other_classes(theirs: Sequence[str], ours: Sequence[str]) -> str | None:
    """Say how many classes a file or data set and the data have, and where names differ first; None for the same."""
    pairs = enumerate(zip_longest(map(quoted, theirs), map(quoted, ours), fillvalue="none"))
    first = next(
        (f"class {at}: {a} there, {b} in the data" for at, (a, b) in pairs if a != b), None
    )
    return (
        first and f"{len(theirs)} classes, the data has {len(ours)}; they differ first in {first}."
    )
