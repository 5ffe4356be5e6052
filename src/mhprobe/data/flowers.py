"""Oxford 102 Flowers (Nilsback & Zisserman 2008): 102 kinds of flowers, by torchvision.

Its train and validation images, 10 + 10 of each kind, are the train images here; the test images
are its own, 6,149.
"""

from typing import Any, ClassVar

import numpy as np

from mhprobe.data.torchvisions import Downloaded, square


class Flowers(Downloaded):
    """root: the folder that holds torchvision's flowers-102."""

    name, title, dataset = "flowers", "Oxford 102 Flowers", "Flowers102"
    folder, instead = "flowers-102", "cifar10"
    parts: ClassVar = {"train": ("train", "val"), "test": ("test",)}

    def decoded(self, item: Any) -> tuple[np.ndarray, ...]:
        return (square(item[0], self.stored_size, blend=True),)

    def file(self, part: Any, number: int) -> str:
        return str(part._image_files[number])
