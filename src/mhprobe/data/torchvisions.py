"""Data sets that torchvision downloads and reads: how they are asked for, and how their pictures become squares."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mhprobe.data.archive import open_archive
from mhprobe.errors import UserError


class Downloaded(ABC):
    """A data set of torchvision's. root: the folder that holds its own; downloaded to ``download_dir`` if None.

    stored_size: pixels of the square each image is decoded to, once. A subclass says its ``folder`` below the root.
    """

    name: str
    folder: str

    def __init__(
        self, root: str | Path | None = None, stored_size: int = 224, download_dir: str | Path = ".cache/mhprobe"
    ) -> None:
        self.root = Path(root if root is not None else Path(download_dir) / self.name).expanduser()
        self.stored_size, self._may_download = stored_size, root is None

    def key(self) -> dict[str, Any]:
        self.there()  # before its files are looked at: a download changes them
        return {**open_archive(self.root / self.folder).key(), "stored_size": self.stored_size}

    @abstractmethod
    def there(self) -> object:
        """See that its files are in ``root``; a download, where that is allowed."""


SECONDS = 30  # without an answer, before a download is given up


def fetched(make: Callable[..., Any], title: str, root: Path, folder: str, other: str, download: bool) -> Any:
    """Return the result of ``make(root, download=...)``; a UserError in one line where it is not in ``root``.

    folder: what torchvision calls its own, in ``root``. other: a data set to take instead. download: fetch it first.
    """
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(SECONDS)  # torchvision sets none: a silent network would hang for minutes
        return make(root, download=download)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; RuntimeError: not there, or damaged
        instead = f"data.root=<folder with {folder}> or data={other}"
        if not download:
            raise UserError(
                f"data.root: {title} is not in {root}, or not whole; expected {root / folder} as torchvision unpacks "
                f"it. Use {instead}, or data.root=null to download it."
            ) from None
        raise UserError(
            f"{title} is not in {root} and could not be fetched ({error}). Without a network use {instead}."
        ) from None
    finally:
        socket.setdefaulttimeout(before)


def square(image: Any, size: int, blend: bool = False) -> np.ndarray:
    """A centre crop of the short side's length, resized to ``size`` pixels. blend: smoothly, for pictures."""
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    crop = image.crop((left, top, left + side, top + side))
    return np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC if blend else Image.Resampling.NEAREST))
