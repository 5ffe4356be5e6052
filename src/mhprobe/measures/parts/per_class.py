"""Sums per class of the images' labels.

Only logits tell how many classes there are. So the sums grow once: at the first batch, or, on a rank that was shown
nothing, before all ranks add up. Shapes: C classes.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.base import Measure


class PerClass(Measure):
    """Return the tables of columns that have a number per class, which ``axes`` names."""

    tables: ClassVar[tuple[str, ...]]

    class_images: Tensor  # (C,)

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self._per_class: list[str] = []
        self.add_class_state("class_images", torch.long)

    def add_class_state(self, name: str, dtype: torch.dtype, *shape: int) -> None:
        """Declare a sum (*shape, C), of no classes yet."""
        self._per_class.append(name)
        self.add_state(name, torch.zeros(*shape, 0, dtype=dtype))

    def see_classes(self, batch: HeadBatch) -> None:
        """To be called with every batch, before its images are counted."""
        if not len(self.class_images):
            self._grow(batch.logits.shape[1])

    def before_sync(self) -> None:
        classes = max(ranks.gather(len(self.class_images)))
        if not len(self.class_images):
            self._grow(classes)

    def _grow(self, classes: int) -> None:
        with torch.inference_mode(False):
            for name in self._per_class:
                empty = getattr(self, name)
                setattr(self, name, empty.new_zeros(*empty.shape[:-1], classes))
        names = [*self.class_names] or [f"class {number}" for number in range(classes)]
        self.axes = dict.fromkeys(self.tables, names)
