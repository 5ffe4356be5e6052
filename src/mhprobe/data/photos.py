"""Images that nobody has labelled: all that lie in a folder, a tar or a zip, at any depth.

The examined network gives them their classes, so that accuracy is agreement with it
(``ImageData.label_by``).
"""

import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhprobe.data.archive import Archive, FileFolder, LeftOut, open_archive
from mhprobe.data.augment import GREY, normalise
from mhprobe.data.decoding import channels_in, levels_given
from mhprobe.data.draws import evenly_spread, stratified
from mhprobe.data.images import (
    ARRAYS,
    SUFFIXES,
    ImageFolder,
    Notes,
    decode_all,
    hidden,
    is_array,
    is_image,
)
from mhprobe.data.source import Contents, Wanted, is_wanted
from mhprobe.errors import UserError
from mhprobe.io.readings import LEFT_OUT, Reading, log_readings
from mhprobe.io.written import counted

log = logging.getLogger(__name__)

READ = (*SUFFIXES, ARRAYS)  # endings of the files that are read
LEAST = 8  # so that half of them can be cut again
UNREAD = (
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
)  # of phones and cameras


def listed(root: str | Path, asker: str) -> tuple[Archive, list[str]]:
    """Open a folder or archive and list its images by name.

    These are photographs, and .npy arrays of any channels; ``suited`` takes those that fit a
    network. Raises UserError, for ``asker``, if there are none.
    """
    place = Path(root).expanduser()
    if not place.exists():
        raise UserError(
            f"{asker}: {place} does not exist. Give a folder of photographs, or a .tar or .zip of "
            "them."
        )
    archive = open_archive(place)
    left_out: LeftOut = {}
    files = _photographs(archive, left_out)
    if not files:
        reason = f": {left_out[min(left_out)]}" if left_out else f" ({', '.join(READ)})."
        raise UserError(f"{asker}: {archive.path} has no photographs that can be read{reason}")
    if left_out:
        told = _told_left_out(archive, left_out)
        log.warning("%s: %s: %s, %s.", archive.path, told.what, told.taken, told.source)
    return archive, files


def _photographs(archive: Archive, left_out: LeftOut) -> list[str]:
    """Names of the images of ``archive``, in order; errors of what cannot be listed go to ``left_out``.

    A warning counts photographs in formats that are not read.
    """
    faults: LeftOut = {}
    names = sorted(archive.names(faults))
    folders = isinstance(archive, FileFolder)  # whose files are looked at when they are read
    photographs = {name for name in faults if folders or is_image(name) or is_array(name)}
    left_out |= {name: faults[name] for name in photographs}
    if unread := [file for file in names if file.lower().endswith(UNREAD) and not hidden(file)]:
        how_many = (
            f"{counted(len(unread), 'photograph')} {'is' if len(unread) == 1 else 'are'} left out"
        )
        text = "%s: %s, in formats that are not read (the first: %s). Save them as JPEG."
        log.warning(text, archive.path, how_many, unread[0])
    return [file for file in names if is_image(file) or is_array(file)]


def suited(files: Sequence[str], channels: int | None = None) -> list[str]:
    """Return the photographs among the files, or the arrays where there are none.

    channels: of a network's images; other than 1 or 3 takes arrays before photographs. A warning
    counts what is left out.
    """
    arrays = [file for file in files if is_array(file)]
    photographs = [file for file in files if not is_array(file)]
    either = photographs or arrays
    taken = either if channels in (None, 1, 3) else arrays or either
    if photographs and arrays:
        both = counted(len(photographs), "photograph"), counted(len(arrays), ".npy array")
        kept = "photographs" if taken is photographs else "arrays"
        log.warning("of %s and %s the %s are taken, the others are left out", *both, kept)
    return taken


def of_channels(image: np.ndarray, channels: int, where: str) -> np.ndarray:
    """Return an image (height, width, C) that fits a network of so many channels.

    Colours fit 1, too. UserError for another number.
    """
    has = image.shape[-1]
    if has == channels or (has, channels) == (3, 1):
        return image
    arrays = f" Give .npy arrays (height, width, {channels})." if channels not in (1, 3) else ""
    raise UserError(
        f"root: {where} has {counted(has, 'channel')}, expected {channels}, as the network takes."
        f"{arrays}"
    )


class Photos(ImageFolder):
    """Photographs without labels, or .npy arrays (height, width, channels) of any channels.

    root: folder or archive; files that are hidden, no images or damaged are left out. stored_size,
    levels: as for ImageFolder. test_fraction: share of them that heads are judged on; the others
    choose.
    """

    name, expected = "photos", "images"

    def __init__(
        self,
        root: str | Path | None,
        stored_size: int | Sequence[int] = 256,
        test_fraction: float = 0.5,
        levels: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(root, stored_size, levels=levels)
        if not 0 < test_fraction < 1:
            raise UserError(
                f"test_fraction: expected a share between 0 and 1, got {test_fraction}."
            )
        self.share = test_fraction

    def key(self) -> dict[str, Any]:
        return {**super().key(), "test_fraction": self.share}

    def scan(self) -> Contents:
        archive = open_archive(self.root)
        left_out: LeftOut = {}
        files = suited(_photographs(archive, left_out))
        if len(files) < LEAST:
            raise UserError(
                f"root: {archive.path} has {len(files)} images, expected at least {LEAST} "
                f"({', '.join(READ)})."
            )
        alike = np.zeros(len(files), dtype=np.int64)
        test = stratified(
            alike, min(max(1, round(self.share * len(files))), len(files) - 1), seed=0
        )
        numbers = {"train": np.setdiff1d(np.arange(len(files)), test), "test": test}
        places = {
            files[number]: (split, i)
            for split, chosen in numbers.items()
            for i, number in enumerate(chosen)
        }
        readings: Notes = []

        def images(wanted: Wanted | None = None) -> Iterator[tuple[Any, ...]]:
            only = [file for file, place in places.items() if is_wanted(wanted, *place)]
            how = self.stored_size, True, self.levels, readings, left_out
            yield from decode_all(archive, places, *how, only=only)
            if left_out:
                readings.append(_told_left_out(archive, left_out))

        labels = {split: alike[chosen] for split, chosen in numbers.items()}
        about: dict[str, Any] = {"readings": readings, "may_lack": True, "some": images}
        if is_array(files[0]):
            about["channels"] = _channels(archive, files)
        return Contents((), labels, self.stored_size, images, **about)


def _channels(archive: Archive, files: Sequence[str]) -> int:
    """Number of channels of the first array that can be read; UserError of the first if none can."""
    first: UserError | None = None
    for file, data in archive.read(files, {}):
        try:
            return channels_in(data, file)
        except UserError as error:
            first = first or error
    raise first or UserError(f"root: {archive.path} has no arrays that can be read.")


def _told_left_out(archive: Archive, left_out: LeftOut) -> Reading:
    """Say how many photographs could not be read, and why the first could not."""
    first = min(left_out)
    because = str(left_out[first]).removeprefix(f"root: {archive.path}: ").removeprefix("root: ")
    number = counted(len(left_out), "photograph")
    return Reading(LEFT_OUT, f"{number} that cannot be read", f"the first: {because.rstrip('.')}")


class PhotoLoader:
    """Batches (B, C, height, width) float32 of a folder's or archive's photos, by name, unlabelled.

    C is the number of channels of ``mean`` and ``std``: 3; 1, which shows colours in grey; or that of
    .npy arrays (height, width, C).

    Each photo is scaled until it covers ``size`` (height, width) in pixels, its middle is cut out,
    and normalised by ``mean`` and ``std`` per channel of pixels in [0, 1]. It is decoded at the
    first walk and kept; photos that cannot be read are left out then, with a warning. ``files``:
    names, in order. ``readings``: how the files were interpreted, by what was read.
    limit: at most so many photos, evenly from all. levels: the value of white, or those of black and
    white, in the files; None takes 8 bits as they are, and of more the fewest that hold the largest
    value. UserError for a folder without images.
    """

    def __init__(
        self,
        root: str | Path,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int = 32,
        limit: int | None = None,
        levels: float | Sequence[float] | None = None,
    ) -> None:
        if min(batch_size, 1 if limit is None else limit) < 1:
            raise UserError(
                f"photos: batch_size and limit are at least 1, got {batch_size} and {limit}."
            )
        self.levels = levels_given(levels, "photos: levels")
        self.archive, every = listed(root, "photos")
        every = suited(every, len(mean))
        self.files = [every[number] for number in evenly_spread(limit or len(every), len(every))]
        self.size, self.mean, self.std, self.batch_size = size, tuple(mean), tuple(std), batch_size
        crop = f"the middle, scaled to {size[1]} x {size[0]} pixels"
        self.readings = {"size": Reading("size", crop, "the network's")}
        if len(self.mean) == 1 and not is_array(self.files[0]):
            self.tell(Reading("colours", GREY, "since the network takes one channel"))

    def __len__(self) -> int:
        return -(-len(self.files) // self.batch_size)

    def tell(self, *readings: Reading) -> None:
        """Keep how files were interpreted, and log it."""
        log_readings(readings, log, f"photos: {self.archive.path}")
        self.readings |= {reading.what: reading for reading in readings}

    def __iter__(self) -> Iterator[Tensor]:
        for pixels in self._pixels.split(self.batch_size):
            yield normalise(pixels, self.size, self.mean, self.std)

    @functools.cached_property
    def _pixels(self) -> Tensor:
        """(N, C, height, width) uint8, in the order of ``files``."""
        readings: Notes = []
        left_out: LeftOut = {}
        places = {file: (file,) for file in self.files}
        decoded = {}
        for file, image in decode_all(
            self.archive, places, self.size, True, self.levels, readings, left_out
        ):
            try:
                decoded[file] = of_channels(image, len(self.mean), file)
            except UserError as error:
                left_out[file] = error
        if not decoded:
            raise UserError(
                f"photos: {self.archive.path} has no photographs that can be read: "
                f"{left_out[min(left_out)]}"
            )
        if left_out:
            readings.append(_told_left_out(self.archive, left_out))
            self.files = [file for file in self.files if file in decoded]
        self.tell(*readings)
        return torch.from_numpy(np.stack([decoded[file] for file in self.files])).permute(
            0, 3, 1, 2
        )
