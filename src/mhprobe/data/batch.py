"""Batch: what a loader yields and a model is trained and tested on.

Shapes: B images of a batch, C classes, height x width pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """One batch.

    images: (B, 3, height, width), uint8 as it leaves the loader, float32 and normalised after the transform.
    labels: (B,) int64; in a notebook None where nobody has any.
    index: (B,) int64, the image's position in its split.
    valid: (B,) bool, False for images that only even out the ranks: they never enter a sum.
    targets: (B, C) soft targets, only after mixup or cutmix.
    first: () int64, the index of the first image of the batch of all ranks; only where images are to be mixed.
    objects: (B, height, width) int64 what each pixel shows, 0 for background; only where the data set tells.
    """

    images: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a batch
    valid: Tensor
    targets: Tensor | None = None
    objects: Tensor | None = None
    first: Tensor | None = None

    @classmethod
    def whole(cls, images: Tensor, labels: Tensor | None = None, objects: Tensor | None = None) -> Batch:
        """A batch that is all there is: images are numbered from 0, and all of them count."""
        index = torch.arange(len(images))
        return cls(images, labels, index, torch.ones(len(index), dtype=torch.bool), objects=objects)  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        return Batch._make(part if part is None else part.to(device) for part in self)

    def part(self, these: slice) -> Batch:
        """Return some of its images, in their order."""
        return Batch._make(part if part is None or not part.dim() else part[these] for part in self)

    @property
    def unlabelled(self) -> Batch:
        """The same batch without labels."""
        return self._replace(labels=None)  # type: ignore[arg-type]  # as in a notebook
