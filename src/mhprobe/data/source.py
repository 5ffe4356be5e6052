"""A source knows where images are and how to decode them. A new one is a class in its own file and a conf/data yaml."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Contents:
    """Contents of a source, known before any image is decoded.

    class_names: empty where nobody has labelled the images.
    labels: split ("train", "test") -> (N,) int64 class numbers; the order is the images' order in the split.
    size: (height, width) of every decoded image.
    images: starts a walk over all images, in any order: (split, position in it, (height, width, 3) uint8).
    objects: each has a fourth part, (height, width) uint8: what each pixel shows, 0 for background.
    """

    class_names: tuple[str, ...]
    labels: dict[str, np.ndarray]
    size: tuple[int, int]
    images: Callable[[], Iterator[tuple[Any, ...]]]
    objects: bool = False


class Source(Protocol):
    name: str

    def key(self) -> dict[str, Any]:
        """Return plain values that the decoded images depend on: another key is another cache. Cheap."""

    def scan(self) -> Contents:
        """List everything; every fault that can be seen without decoding raises UserError here."""
