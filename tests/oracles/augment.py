"""Shift, mirror, resize and normalise one image at a time with PIL and NumPy; what is random is given."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps


def crop_flip(image: np.ndarray, down: int, right: int, mirrored: bool, padding: int) -> np.ndarray:
    """(height, width, 3) uint8: padded by reflection, cropped ``down`` and ``right`` of the centre, then mirrored."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode="reflect")
    left, top = padding + right, padding + down
    cropped = Image.fromarray(padded).crop((left, top, left + width, top + height))
    return np.asarray(ImageOps.mirror(cropped) if mirrored else cropped)


def normalise(
    image: np.ndarray, size: tuple[int, int], mean: list[float], std: list[float]
) -> np.ndarray:
    """(height, width, 3) uint8 -> (3, *size) float64."""
    resized = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BICUBIC))
    return ((resized / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)
