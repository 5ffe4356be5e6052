"""Small data sets for tests: class folders of images, and a source that needs no file."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mhprobe.data.source import Contents


def encoded(seed: int, width: int = 32, height: int = 32, format: str = "PNG") -> bytes:
    """A noise image that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format)
    return buffer.getvalue()


def class_files(
    train: int = 3, test: int = 2, classes: tuple[str, ...] = ("cat", "dog"), **image: Any
) -> dict[str, bytes]:
    """File name -> contents of ``train`` and ``test`` images per class."""
    names = [
        f"{split}/{c}/{i}.png"
        for split, n in (("train", train), ("test", test))
        for c in classes
        for i in range(n)
    ]
    return {name: encoded(seed, **image) for seed, name in enumerate(names)}


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:" if path.suffix == ".tar" else "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_pets(
    root: Path, each: int = 1, breeds: tuple[str, ...] = ("Abyssinian", "beagle")
) -> Path:
    """``each`` animals per breed and split, in the layout that torchvision downloads."""
    base = root / "oxford-iiit-pet"
    (base / "images").mkdir(parents=True)
    (base / "annotations" / "trimaps").mkdir(parents=True)
    names, kinds = [f"{breed}_{i}" for i in range(2 * each) for breed in breeds], len(breeds)
    for i, name in enumerate(names):
        pixels = 50 * i % 216 + np.random.default_rng(i).integers(0, 40, (30, 40, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(base / "images" / f"{name}.jpg")
        trimap = np.full((30, 40), 2, np.uint8)
        trimap[:, 10:30], trimap[:, 8:10] = 1, 3
        Image.fromarray(trimap).save(base / "annotations" / "trimaps" / f"{name}.png")
    lines = [f"{name} {1 + i % kinds} {1 + i % 2} 1" for i, name in enumerate(names)]
    (base / "annotations" / "trainval.txt").write_text("\n".join(lines[: kinds * each]) + "\n")
    (base / "annotations" / "test.txt").write_text("\n".join(lines[kinds * each :]) + "\n")
    return root


def write_flowers(root: Path, each: int = 1, kinds: int = 2) -> Path:
    """``each`` flowers per kind in train, validation and test, in the layout that torchvision downloads."""
    from scipy.io import savemat

    base = root / "flowers-102"
    (base / "jpg").mkdir(parents=True)
    numbers = np.arange(1, 3 * kinds * each + 1)
    for number in numbers.tolist():
        Image.fromarray(np.full((30, 40, 3), 7 * number % 256, np.uint8)).save(
            base / "jpg" / f"image_{number:05d}.jpg"
        )
    savemat(base / "imagelabels.mat", {"labels": 1 + numbers % kinds})
    savemat(
        base / "setid.mat",
        dict(zip(("trnid", "valid", "tstid"), numbers.reshape(3, -1), strict=True)),
    )
    return root


class Noise:
    """Random pixels: ``sizes`` (train, test) images, labels in turn 0, 1, 2, ...

    ``version`` changes the key.
    """

    name = "noise"

    def __init__(
        self, sizes: tuple[int, int] = (40, 21), classes: int = 3, pixels: int = 8, version: int = 0
    ) -> None:
        self.sizes, self.classes, self.pixels, self.version = sizes, classes, pixels, version
        self.scans = 0

    def key(self) -> dict[str, Any]:
        return {
            "sizes": self.sizes,
            "classes": self.classes,
            "pixels": self.pixels,
            "version": self.version,
        }

    def scan(self) -> Contents:
        self.scans += 1
        sizes = dict(zip(("train", "test"), self.sizes, strict=True))

        def images() -> Iterator[tuple[str, int, np.ndarray]]:
            for split, size in sizes.items():
                rng = np.random.default_rng([self.version, size])
                for i in range(size):
                    yield (
                        split,
                        i,
                        rng.integers(0, 256, (self.pixels, self.pixels, 3), dtype=np.uint8),
                    )

        return Contents(
            class_names=tuple(f"class{i}" for i in range(self.classes)),
            labels={
                split: np.arange(size, dtype=np.int64) % self.classes
                for split, size in sizes.items()
            },
            size=(self.pixels, self.pixels),
            images=images,
        )
