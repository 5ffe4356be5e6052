"""Images in class folders: ``train/<class>/<file>`` and ``test/<class>/<file>``, in a folder, a tar or a zip."""

import contextlib
import functools
import io
import itertools
import logging
import os
import struct
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mhprobe.data.archive import Archive, open_archive
from mhprobe.data.source import Contents
from mhprobe.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "test")
_IGNORED = ("thumbs.db", "desktop.ini")
_CHUNK = 64  # images per task of the pool: small ones cost less to decode than to hand over


class ImageFolder:
    """Any data set of class folders.

    root: folder or archive. stored_size: pixels of the square kept of each image: resized
    (bicubic), centre-cropped.
    """

    name = "image_folder"
    expected = "train/<class>/* and test/<class>/*, or val/<class>/* in place of test/"

    def __init__(self, root: str | Path | None, stored_size: int = 256) -> None:
        if root is None:
            raise UserError(f"root: expected a folder or archive of {self.expected}, got null.")
        if stored_size < 1:
            raise UserError(f"stored_size: expected at least 1 pixel, got {stored_size}.")
        self.root, self.stored_size = root, stored_size

    def key(self) -> dict[str, Any]:
        return {**open_archive(self.root).key(), "stored_size": self.stored_size}

    def scan(self) -> Contents:
        return scan(open_archive(self.root), self.stored_size)


def scan(archive: Archive, size: int, resize: bool = True) -> Contents:
    """List the class folders of ``archive``; images become ``size`` px square, or must be so if not ``resize``."""
    folders, where = _class_folders(archive), f"root: {archive.path}"
    for split in SPLITS:
        if not folders[split]:
            raise UserError(
                f"{where} has no images under {split}/<class>/. Expected {ImageFolder.expected} "
                f"({', '.join(SUFFIXES)})."
            )
    for has, lacks in (("train", "test"), ("test", "train")):
        if missing := sorted(folders[has].keys() - folders[lacks].keys()):
            raise UserError(
                f"{where}: {len(missing)} of the classes in {has}/ have no images in {lacks}/: "
                f"{', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}. Both need the same "
                "classes."
            )
    names = tuple(sorted(folders["train"]))
    if len(names) < 2:
        raise UserError(
            f"{where} has one class, {names[0]}; telling classes apart needs at least two."
        )
    # sorted, so that a folder and an archive of the same files are the same data set
    files = {split: [sorted(folders[split][name]) for name in names] for split in SPLITS}
    labels = {
        split: np.repeat(np.arange(len(names)), list(map(len, of))) for split, of in files.items()
    }
    places = {
        file: (split, i)
        for split, of in files.items()
        for i, file in enumerate(itertools.chain(*of))
    }
    return Contents(
        names, labels, (size, size), functools.partial(decode_all, archive, places, size, resize)
    )


def _class_folders(archive: Archive) -> dict[str, dict[str, list[str]]]:
    """Names in the archive of all images, by split and class; their folders may lie at any depth."""
    images: dict[str, dict[str, list[str]]] = {split: defaultdict(list) for split in SPLITS}
    roots, others, names = set(), [], archive.names()
    folders = {folder for file in names if not hidden(file) for folder in file.split("/")[-3:-2]}
    # the test images of ImageNet have no classes: those of val/ stand in for them
    splits = {
        "train": "train",
        "val" if "val" in folders and "test" not in folders else "test": "test",
    }
    if {"val", "test"} <= folders:
        log.warning(
            "%s: its val/ is left out; images for validation are drawn from train/.", archive.path
        )
    for file in names:
        *root, split, name, leaf = ("", "", *file.split("/"))
        if split not in splits or hidden(file):
            others += [file] if is_image(file) else []
            continue
        if not leaf.lower().endswith(SUFFIXES):
            raise UserError(
                f"root: {archive.path}: {file} is not an image; expected {', '.join(SUFFIXES)}."
            )
        roots.add("/".join(part for part in root if part))
        images[splits[split]][name].append(file)
    if len(roots) > 1:
        raise UserError(
            f"root: {archive.path} holds {len(roots)} data sets, in "
            f"{', '.join(sorted(roots)[:3])}. "
            f"Choose one of these folders."
        )
    inside = tuple(f"{root}/{split}/".lstrip("/") for root in roots for split in splits)
    if astray := sorted(file for file in others if file.startswith(inside)):
        where = (
            f"root: {archive.path}: {len(astray)} images lie beside or below the folders of classes"
        )
        raise UserError(f"{where}, e.g. {astray[0]}. Move or remove them.")
    return images


def hidden(file: str) -> bool:
    return any(
        part.startswith((".", "__MACOSX")) or part.lower() in _IGNORED for part in file.split("/")
    )


def is_image(file: str) -> bool:
    return not hidden(file) and file.lower().endswith(SUFFIXES)


def decode_all(
    archive: Archive, places: dict[str, tuple[Any, ...]], size: int, resize: bool
) -> Iterator[tuple[Any, ...]]:
    """(*place, pixels) of each file with a place, decoded by threads that never run far ahead of the reader.

    UserError, after the last file, counts those that cannot be read, so that all can be replaced
    before the next try.
    """
    faults: dict[str, UserError] = {}

    def decode_chunk(chunk: list[tuple[str, bytes]]) -> list[tuple[Any, ...]]:
        images = []
        for file, data in chunk:
            try:
                images.append(
                    (*places[file], decode(data, size, resize, f"{archive.path}: {file}"))
                )
            except UserError as error:
                faults[file] = error
        return images

    refuse_bombs()
    workers = os.cpu_count() or 1
    stream = archive.read(places)
    pending: deque[Future[list[tuple[Any, ...]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while chunk := list(itertools.islice(stream, _CHUNK)):
            pending.append(pool.submit(decode_chunk, chunk))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
    if faults:
        first, *others = sorted(faults)
        named = f"{', '.join(others[:4])}{', ...' * (len(others) > 4)}"
        more = (
            f" {len(others)} more of {len(places)} images cannot be read either: {named}"
            if others
            else ""
        )
        raise UserError(f"{faults[first]}{more}")


def refuse_bombs() -> None:
    """Refuse where PIL would only warn: nothing that large is an image for a transformer, and a bomb looks like it."""
    from PIL import Image

    warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


# Of Pillow's formats those that are pixels alone: PostScript would be run by Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
THINNEST = 100  # times as long as wide: scaling its short side up would take gigabytes


def _refuse_thin(size: tuple[int, int], where: str) -> None:
    """Raise UserError for an image that is far longer than wide."""
    width, height = size
    if max(size) > THINNEST * min(size):
        raise UserError(
            f"root: {where} has {width} x {height} pixels, expected a shape of at most {THINNEST} "
            "to 1. Crop it, or leave it out."
        )


def decode(data: bytes, size: int, resize: bool, where: str) -> np.ndarray:
    """An encoded image -> (size, size, 3) uint8 RGB, upright; 16-bit grey keeps its upper 8 bits.

    where: for errors.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _refuse_thin(opened.size, where)
            if resize:
                opened.draft(
                    "RGB", (size, size)
                )  # JPEG only: decode at the smallest scale that is large enough
            opened.load()
            with contextlib.suppress(
                SyntaxError, ValueError, TypeError, KeyError, struct.error
            ):  # damaged EXIF
                ImageOps.exif_transpose(
                    opened, in_place=True
                )  # a camera held sideways writes its pixels sideways
            image = _eight_bits(opened, where).convert("RGB")
    except UserError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        most = f"{Image.MAX_IMAGE_PIXELS or 0:,}"
        raise UserError(
            f"root: {where} has more than the {most} pixels that are read. Make it smaller."
        ) from None
    except Exception as error:  # PIL raises half a dozen unrelated types for damaged files
        # its message for an unknown format is an object's address
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else error
        raise UserError(f"root: {where} is damaged ({reason}). Replace or remove it.") from None
    if image.size != (size, size):
        if not resize:
            raise UserError(
                f"root: {where} has {image.width} x {image.height} pixels, expected {size} x "
                f"{size}."
            )
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), Image.Resampling.BICUBIC).crop(
            (left, top, left + size, top + size)
        )
    return np.asarray(image)


def _eight_bits(image: "PillowImage", where: str) -> "PillowImage":
    """The image with 8 bits a channel: of wider pixels ``convert`` would make white whatever is above 255."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "whole numbers of 32 bits" if image.mode == "I" else "floating-point numbers"
        raise UserError(
            f"root: {where} has {kind} for pixels, which do not say what is white; expected 8 or "
            "16 bits. Save it "
            f"as one of these."
        )
    return image
