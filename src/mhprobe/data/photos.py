"""Images that nobody has labelled: all that lie in a folder, a tar or a zip, at any depth.

Their classes are those that the examined network gives them (``ImageData.label_by``): accuracy is then agreement with
the whole network. Images are decoded as those of class folders are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mhprobe.data.archive import open_archive
from mhprobe.data.images import SUFFIXES, decode_all
from mhprobe.data.source import Contents
from mhprobe.data.split import stratified
from mhprobe.errors import UserError

LEAST = 8  # so that half of them can be cut again


class Photos:
    """Photographs without labels.

    root: folder or archive; files that are hidden, or no images by their names, are left out.

    stored_size: pixels of the square that is kept of each image. test_fraction: share of them that heads are judged on;
    the others choose. Which is which follows from the names alone.
    """

    name = "photos"

    def __init__(self, root: str | Path | None, stored_size: int = 256, test_fraction: float = 0.5) -> None:
        if root is None:
            raise UserError("data.root: expected a folder or archive of images, got null.")
        if stored_size < 1:
            raise UserError(f"data.stored_size: expected at least 1 pixel, got {stored_size}.")
        if not 0 < test_fraction < 1:
            raise UserError(f"data.source.test_fraction: expected a share between 0 and 1, got {test_fraction}.")
        self.root, self.stored_size, self.test_fraction = root, stored_size, test_fraction

    def key(self) -> dict[str, Any]:
        return {**open_archive(self.root).key(), "stored_size": self.stored_size, "test_fraction": self.test_fraction}

    def scan(self) -> Contents:
        archive = open_archive(self.root)
        files = sorted(file for file in archive.names() if _is_image(file))
        if len(files) < LEAST:
            raise UserError(
                f"data.root: {archive.path} has {len(files)} images, expected at least {LEAST} ({', '.join(SUFFIXES)})."
            )
        alike = np.zeros(len(files), dtype=np.int64)
        test = stratified(alike, min(max(1, round(self.test_fraction * len(files))), len(files) - 1), seed=0)
        numbers = {"train": np.setdiff1d(np.arange(len(files)), test), "test": test}
        slot = {files[number]: (split, i) for split, those in numbers.items() for i, number in enumerate(those)}

        def images() -> Iterator[tuple[str, int, np.ndarray]]:
            for file, pixels in decode_all(archive, slot, self.stored_size, resize=True):
                yield *slot[file], pixels

        labels = {split: alike[those] for split, those in numbers.items()}
        return Contents((), labels, (self.stored_size, self.stored_size), images)


def _is_image(file: str) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in file.split("/"))
    return not hidden and file.lower().endswith(SUFFIXES)
