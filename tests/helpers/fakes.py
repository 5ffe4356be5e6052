"""A stand-in for CIFAR-10: its class names and its layout, a few random pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def image_folder(
    root: Path, train: int = 8, test: int = 3, size: int = 32, classes: tuple[str, ...] = CLASSES
) -> Path:
    """``root/train/<class>/*.png`` and ``root/test/<class>/*.png``, so many of each class."""
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for name in classes:
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return root
