"""Data sets that torchvision downloads and reads: how they are asked for, and how their pictures become squares."""

import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mhprobe.data.archive import open_archive
from mhprobe.data.source import Contents, Wanted, is_wanted
from mhprobe.errors import UserError

SECONDS = 30  # without an answer, before a download is given up


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Give up a download where no answer comes: torchvision sets no limit, and a silent network hangs for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


class Downloaded(ABC):
    """A data set of torchvision's.

    root: the folder that holds its own; downloaded to ``download_dir`` if None.

    stored_size: pixels of the square each image is decoded to, once. A subclass says the
    ``dataset`` of torchvision and its ``options``, the ``folder`` below the root, the ``parts`` of
    each split, and a data set to take ``instead``.
    """

    name: str
    title: ClassVar[str]
    dataset: ClassVar[str]
    folder: ClassVar[str]
    parts: ClassVar[Mapping[str, Sequence[str]]]
    instead: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    objects = False

    def __init__(
        self,
        root: str | Path | None = None,
        stored_size: int = 224,
        download_dir: str | Path = ".cache/mhprobe",
    ) -> None:
        self.root = Path(root if root is not None else Path(download_dir) / self.name).expanduser()
        self.stored_size, self._may_download = stored_size, root is None

    def key(self) -> dict[str, Any]:
        self._part("test")  # before its files are looked at: a download changes them
        return {**open_archive(self.root / self.folder).key(), "stored_size": self.stored_size}

    def scan(self) -> Contents:
        parts = {split: [self._part(name) for name in names] for split, names in self.parts.items()}

        def pictures(wanted: Wanted | None = None) -> Iterator[tuple[Any, ...]]:
            for split, of_split in parts.items():
                for position, (part, i) in enumerate(
                    (p, i) for p in of_split for i in range(len(p))
                ):
                    if not is_wanted(wanted, split, position):
                        continue
                    try:
                        item = part[i]
                    except OSError as error:
                        raise UserError(
                            f"root: {self.file(part, i)} cannot be read ({error})."
                        ) from None
                    yield split, position, *self.decoded(item)

        labels = {
            s: np.concatenate([np.array(p._labels, np.int64) for p in ps])
            for s, ps in parts.items()
        }
        size = (self.stored_size, self.stored_size)
        # torchvision before 0.22 does not name flowers
        numbers = map(str, range(int(labels["train"].max()) + 1))
        names = tuple(getattr(parts["train"][0], "classes", numbers))
        return Contents(names, labels, size, pictures, self.objects, some=pictures)

    @abstractmethod
    def decoded(self, item: Any) -> tuple[np.ndarray, ...]:
        """The picture, and the mask of its objects where there are any, of an item of torchvision's."""

    @abstractmethod
    def file(self, part: Any, number: int) -> str:
        """Return the name of the file of an image, for errors."""

    def _part(self, name: str) -> Any:
        """A part of torchvision's, fetched if need be; a UserError in one line where it is not in ``root``."""
        from torchvision import datasets

        try:
            with soon():
                make = getattr(datasets, self.dataset)
                return make(self.root, split=name, download=self._may_download, **self.options)
        except (
            OSError,
            RuntimeError,
        ) as error:  # URLError is an OSError; RuntimeError: not there, or damaged
            instead = f"root=<folder with {self.folder}> or data={self.instead}"
            if not self._may_download:
                raise UserError(
                    f"root: {self.title} is not in {self.root}, or not whole; expected "
                    f"{self.root / self.folder} "
                    f"as torchvision unpacks it. Use {instead}, or root=null to download it."
                ) from None
            raise UserError(
                f"{self.title} is not in {self.root} and could not be fetched ({error}). Without a "
                "network use "
                f"{instead}."
            ) from None


def square(image: Any, size: int, blend: bool = False) -> np.ndarray:
    """A centre crop of the short side's length, resized to ``size`` pixels.

    blend: smoothly, for pictures.
    """
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    crop = image.crop((left, top, left + side, top + side))
    return np.asarray(
        crop.resize((size, size), Image.Resampling.BICUBIC if blend else Image.Resampling.NEAREST)
    )
