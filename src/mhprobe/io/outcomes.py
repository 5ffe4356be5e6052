"""Outcomes of a run: which test images are right, in one small file, so that runs are compared image by image.

A file that cannot be read, that is not as it was written, or that says nothing of its images, is as good as none.

Shapes: N test images.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.io import files
from mhprobe.io.tensors import packed, unpacked

FILE = "outcomes.safetensors"


class Outcomes(NamedTuple):
    """Outcomes of N test images.

    right: (N,) bool. images: a digest of their pixels, labels and places; equal for the same images.
    """

    right: Tensor
    images: str


def write(folder: Path, right: Tensor, positions: Tensor, images: str) -> Path:
    """``folder/outcomes.safetensors``: ``right`` and ``positions``, (N,) each.

    positions: of the images in the whole test set, as the data set orders it.
    """
    tensors = {"right": right.to("cpu", torch.uint8), "positions": positions.to("cpu", torch.int32)}
    return files.write(folder / FILE, packed(tensors, {"images": images}))


def read(folder: Path) -> Outcomes | None:
    """Read the outcomes of a run; None if there are none that can be read."""
    found = unpacked(folder / FILE)
    if found is None or "right" not in found[0] or "images" not in found[1]:
        return None
    return Outcomes(found[0]["right"].bool(), found[1]["images"])
