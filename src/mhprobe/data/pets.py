"""Oxford-IIIT Pet (Parkhi et al. 2012): 37 breeds of cats and dogs, with a trimap of every animal, by torchvision.

Object 1 is the animal; the trimap's ground and its narrow unclassified border are 0. Images and masks are resized
by the short side and centre-cropped alike, the masks without blending.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mhprobe.data.source import Contents
from mhprobe.data.torchvisions import Downloaded, fetched, square
from mhprobe.errors import UserError

ANIMAL = 1  # in a trimap; 2 is the ground, 3 not classified


class Pets(Downloaded):
    """root: the folder that holds torchvision's oxford-iiit-pet."""

    name = "pets"
    folder = "oxford-iiit-pet"

    def there(self) -> object:
        return self._split("test")

    def scan(self) -> Contents:
        splits = {"train": self._split("trainval"), "test": self._split("test")}
        first = splits["train"]

        def pairs() -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
            for split, pets in splits.items():
                for i in range(len(pets)):
                    try:
                        image, (_, trimap) = pets[i]
                    except OSError as error:
                        raise UserError(
                            f"data.root: {pets._images[i]} or its trimap cannot be read ({error})."
                        ) from None
                    shown = square(trimap, self.stored_size) == ANIMAL
                    yield split, i, square(image, self.stored_size, blend=True), shown.astype(np.uint8)

        return Contents(
            class_names=tuple(first.classes),
            labels={split: np.array(pets._labels, dtype=np.int64) for split, pets in splits.items()},
            size=(self.stored_size, self.stored_size),
            images=pairs,
            objects=True,
        )

    def _split(self, name: str) -> Any:
        from torchvision.datasets import OxfordIIITPet

        make = functools.partial(OxfordIIITPet, split=name, target_types=["category", "segmentation"])
        return fetched(make, "Oxford-IIIT Pet", self.root, self.folder, "scenes", self._may_download)
