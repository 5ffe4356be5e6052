"""Sums per class of the images' labels.

Only logits tell how many classes there are. So the sums grow once: at the first batch, or, on a rank that was shown
nothing, before all ranks add up. Shapes: C classes.
"""

from typing import ClassVar

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadBatch
from mhprobe.measures.base import Measure, counts


class PerClass(Measure):
    """Base of measures with sums (..., C). tables: columns that have a number per class, which ``axes`` names."""

    tables: ClassVar[tuple[str, ...]]

    class_images: Tensor = counts("C")

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
            for name in [name for name, (shape, _) in self.declared.items() if "C" in shape]:
                empty = getattr(self, name)
                setattr(self, name, empty.new_zeros(*empty.shape[:-1], classes))
        names = [*self.class_names] or [f"class {number}" for number in range(classes)]
        self.axes = dict.fromkeys(self.tables, names)
