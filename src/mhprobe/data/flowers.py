"""Oxford 102 Flowers (Nilsback & Zisserman 2008): 102 kinds of flowers, by torchvision.

Its train and validation images, 10 + 10 of each kind, are the train images here; the test images are its own, 6,149.
Images are centre-cropped to the short side and resized.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mhprobe.data.source import Contents
from mhprobe.data.torchvisions import Downloaded, fetched, square
from mhprobe.errors import UserError


class Flowers(Downloaded):
    """root: the folder that holds torchvision's flowers-102."""

    name = "flowers"
    folder = "flowers-102"

    def there(self) -> object:
        return self._part("test")

    def scan(self) -> Contents:
        parts = {"train": [self._part("train"), self._part("val")], "test": [self._part("test")]}

        def pictures() -> Iterator[tuple[str, int, np.ndarray]]:
            for split, flowers in parts.items():
                position = 0
                for part in flowers:
                    for i in range(len(part)):
                        yield split, position, square(_opened(part, i), self.stored_size, blend=True)
                        position += 1

        return Contents(
            class_names=tuple(parts["train"][0].classes),
            labels={
                split: np.concatenate([np.array(part._labels, dtype=np.int64) for part in flowers])
                for split, flowers in parts.items()
            },
            size=(self.stored_size, self.stored_size),
            images=pictures,
        )

    def _part(self, name: str) -> Any:
        from torchvision.datasets import Flowers102

        make = functools.partial(Flowers102, split=name)
        return fetched(make, "Oxford 102 Flowers", self.root, self.folder, "cifar10", self._may_download)


def _opened(part: Any, number: int) -> Any:
    try:
        return part[number][0]
    except OSError as error:
        raise UserError(f"data.root: {part._image_files[number]} cannot be read ({error}).") from None
