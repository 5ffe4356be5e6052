"""Outcomes of a run: which test images are right, in one small file, so that runs are compared image by image.

A file that cannot be read, or that says nothing of its images, is as good as none.

Shapes: N test images.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mhprobe.io import files

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
    return files.write(folder / FILE, save(tensors, {"images": images}))


def read(folder: Path) -> Outcomes | None:
    """Read the outcomes of a run; None if there are none that can be read."""
    try:
        with safe_open(str(folder / FILE), "pt") as file:
            return Outcomes(file.get_tensor("right").bool(), file.metadata()["images"])
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
