"""Oxford-IIIT Pet (Parkhi et al. 2012): 37 breeds of cats and dogs, with a trimap of every animal, by torchvision."""

from typing import Any, ClassVar

import numpy as np

from mhprobe.data.torchvisions import Downloaded, square


class Pets(Downloaded):
    """root: the folder that holds torchvision's oxford-iiit-pet."""

    name, title, dataset = "pets", "Oxford-IIIT Pet", "OxfordIIITPet"
    folder, instead = "oxford-iiit-pet", "scenes"
    parts: ClassVar = {"train": ("trainval",), "test": ("test",)}
    options: ClassVar = {"target_types": ["category", "segmentation"]}
    objects = True

    def decoded(self, item: Any) -> tuple[np.ndarray, ...]:
        image, (_, trimap) = item
        shown = (
            square(trimap, self.stored_size) == 1
        )  # the animal; 2 is the ground, 3 a narrow border
        return square(image, self.stored_size, blend=True), shown.astype(np.uint8)

    def file(self, part: Any, number: int) -> str:
        return f"{part._images[number]} or its trimap"
