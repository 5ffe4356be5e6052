"""Photographs of a folder for a page, and masks of salient objects. Unreadable files are named."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from mhprobe.data.archive import Archive, LeftOut, open_archive
from mhprobe.data.augment import channels_shown, resized
from mhprobe.data.decoding import Levels, Size, decode, holds_frames, refuse_bombs
from mhprobe.data.draws import evenly_spread
from mhprobe.data.images import Notes, OfSet, first_frames, is_image, readable
from mhprobe.data.photos import of_channels, suited
from mhprobe.errors import UserError
from mhprobe.io.spelling import spelled
from mhprobe.pages.html.pictures import encoded, three_colours
from mhprobe.weights.networks import some

SHOWN = 448  # pixels of a photograph's longer side in a page
QUALITY = 82  # of its JPEG
T = TypeVar("T")
Pixels = np.ndarray[Any, Any]


log = logging.getLogger(__name__)


class Photographs(NamedTuple):
    """The middle of N photographs, in the shape of a network's images.

    names: files. pixels: (N, C, height, width) uint8, for the network. pictures: JPEG as data URLs,
    for the page.
    notes: how many of the folder's photographs these are, if not all, how they were interpreted, and
    a line per unreadable file.
    """

    names: list[str]
    pixels: Tensor
    pictures: list[str]
    notes: list[str]


def photographs(
    there: tuple[Archive, list[str]],
    size: Size,
    limit: int = 12,
    levels: Levels | None = None,
    channels: int = 3,
) -> Photographs:
    """Read at most ``limit`` photographs, evenly by name, as images of ``size``.

    there: as of ``listed``. size: pixels of the side of squares, or (height, width). levels: as for
    ``decode``; None finds those of files of more than 8 bits. channels: of the network's images;
    colours are for 1, too.

    Raises UserError where none of them can be read.
    """
    archive, every = there[0], suited(there[1], channels)
    of_network = (size, size) if isinstance(size, int) else size
    scale = SHOWN / max(of_network)
    shown = (max(1, round(of_network[0] * scale)), max(1, round(of_network[1] * scale)))
    readings: Notes = []
    chosen = [every[number] for number in evenly_spread(limit, len(every))]
    wide = OfSet(archive, chosen, readings)

    def both(data: bytes, name: str) -> tuple[Pixels, Pixels]:
        """Decode a file for the network and for the page."""
        as_read = levels or wide.levels
        image = decode(data, of_network, True, readable(name), as_read)
        return (
            of_channels(image, channels, readable(name)),
            decode(data, shown, True, readable(name), as_read),
        )

    refuse_bombs()
    read, left_out = read_each(archive, chosen, both, readings)
    if not read:
        raise UserError(f"look: {archive.path} has no photographs that can be read: {left_out[0]}")
    names = sorted(read)  # an archive streams in its own order
    notes = [*in_words(readings), *(f"Left out: {line}" for line in left_out)]
    if len(every) > limit:
        notes.insert(
            0,
            f"{len(names)} of the {len(every)} photographs in the folder are shown, evenly by "
            "name.",
        )
    images = np.stack([read[name][0] for name in names])
    if part := channels_shown(images.shape[-1]):
        notes.append(f"Pictures show {part}.")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    pictures = [encoded(three_colours(read[name][1]), "jpeg", quality=QUALITY) for name in names]
    return Photographs(list(map(readable, names)), pixels, pictures, notes)


def read_each(
    archive: Archive, names: Sequence[str], read: Callable[[bytes, str], T], readings: Notes
) -> tuple[dict[str, T], list[str]]:
    """Return what ``read`` makes of each file, by its name, and a line for each that cannot be read.

    readings: takes how files of several frames are read.
    """
    faults: LeftOut = {}
    framed: list[str] = []
    found, left_out = {}, []
    for name, data in archive.read(names, faults):
        try:
            found[name] = read(data, name)
            if holds_frames(data):
                framed.append(readable(name))
        except UserError as error:
            left_out.append(error)
    if framed:
        readings.append(first_frames(framed))
    lines = [str(error).removeprefix("root: ") for error in (*left_out, *faults.values())]
    return found, lines


def in_words(readings: Notes) -> list[str]:
    """Return a sentence per reading, which names its option as it is typed."""
    typed = [one._replace(option=f"--{one.option}" if one.option else "") for one in readings]
    return [f"{reading}." for reading in typed]


def masks(folder: str | Path, names: list[str], size: tuple[int, int]) -> Tensor:
    """(N, *size) int64, 1 on salient objects: pixels of a mask at least half as bright as its maximum.

    folder: has an image for each photograph, of the same name up to its ending. Raises UserError if
    one is missing, or if a name belongs to several.
    """
    archive = open_archive(Path(folder).expanduser())
    files = _mask_of_each(archive, names)
    decoded = {file: decode(data, size, True, file) for file, data in archive.read(set(files))}
    bright = torch.from_numpy(np.stack([decoded[file].max(-1) for file in files])).float()
    salient = (2 * bright >= bright.amax((1, 2), keepdim=True)) & (bright > 0)
    black = [file for file, mask in zip(files, salient, strict=True) if not mask.any()]
    words = (
        f"{len(black)} of {len(files)} masks in {archive.path} are black all over: {some(black)}"
    )
    if len(black) == len(files):
        raise UserError(f"look: masks: {words}. Expected masks that are bright on objects.")
    if black:
        log.warning("look: masks: %s.", words)
    return resized(salient, size)


def _mask_of_each(archive: Archive, names: Sequence[str]) -> list[str]:
    """Return the image of each photograph's name, up to its ending. UserError where there is not one of both."""
    images = [file for file in archive.names({}) if is_image(file)]
    masks = []
    for name in names:
        stem = PurePosixPath(name).stem
        masked, there = _of_stem(names, stem), _of_stem(images, stem)
        if len(masked) != 1 or len(there) != 1:
            raise UserError(
                f"look: masks: {archive.path} has {' and '.join(there) or 'no mask'} for "
                f"{' and '.join(masked)}; "
                f"expected one image of the same name, e.g. {stem}.png."
            )
        masks += there
    return masks


def _of_stem(files: Sequence[str], stem: str) -> list[str]:
    look = spelled(stem)
    return [file for file in files if spelled(PurePosixPath(readable(file)).stem) == look]
