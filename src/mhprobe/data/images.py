"""Images in class folders: ``train/<class>/<file>`` and ``test/<class>/<file>``, in a folder, a tar or a zip."""

import dataclasses
import functools
import itertools
import logging
import os
import re
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mhprobe.data.archive import Archive, open_archive
from mhprobe.data.decoding import (
    Levels,
    Range,
    Size,
    certain,
    channels_in,
    decode,
    holds_frames,
    in_words,
    levels_given,
    levels_of,
    range_of,
    refuse_bombs,
)
from mhprobe.data.draws import stratified
from mhprobe.data.recognised import TEST, TRAIN, VALIDATION, other_form
from mhprobe.data.source import Contents, Wanted, is_wanted
from mhprobe.errors import UserError, quoted
from mhprobe.io.ordinary import ordinary
from mhprobe.io.readings import Reading
from mhprobe.io.spelling import as_spelled_in
from mhprobe.io.written import counted

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ARRAYS = ".npy"  # images of any number of channels
SPLITS = ("train", "test")
_IGNORED = ("thumbs.db", "desktop.ini")
_CHUNK = 64  # images per task of the pool: small ones cost less to decode than to hand over
_HEAVY = 2**26  # bytes of a task that is not decoded beside others

Notes = list[Reading]  # that a walk over images adds to


class ImageFolder:
    """Any data set of class folders: of pictures, or of .npy arrays (height, width, channels) of any channels.

    root: folder or archive. stored_size: pixels of what is kept of each image, the side of a square
    or [height, width]: scaled to cover it (bicubic), centre-cropped. classes: the order of the
    classes: "text" for 0, 1, 10, 2, as torchvision's ImageFolder; "number" for 0, 1, 2, 10, as
    timm's train.py; a list of their names, or a file with one name a line; None takes "text", and
    says so where the orders differ. levels: the value of white, or those of black and white, in the
    files; None takes 8 bits as they are, and of more the fewest that hold the largest value.
    test_fraction: of class folders without train/ and test/, the share of each class that tests.
    """

    name = "image_folder"
    expected = "train/<class>/* and test/<class>/*, or val/<class>/* in place of test/"

    def __init__(
        self,
        root: str | Path | None,
        stored_size: int | Sequence[int] = 256,
        classes: str | Sequence[str] | None = None,
        levels: float | Sequence[float] | None = None,
        test_fraction: float | None = None,
    ) -> None:
        if root is None:
            raise UserError(f"root: expected a folder or archive of {self.expected}, got null.")
        sides = [stored_size] * 2 if isinstance(stored_size, int) else [*stored_size]
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            raise UserError(
                f"stored_size: expected at least 1 pixel, or [height, width], got {stored_size}."
            )
        if test_fraction is not None and not 0 < test_fraction < 1:
            raise UserError(
                f"test_fraction: expected a share between 0 and 1, got {test_fraction}."
            )
        self.root, self.stored_size = root, (sides[0], sides[1])
        self.classes, self.levels = classes, levels_given(levels, "levels")
        self.test_fraction = test_fraction

    def key(self) -> dict[str, Any]:
        given = {
            "classes": class_list(self.classes) if self.classes is not None else None,
            "levels": self.levels,
            "test_fraction": self.test_fraction,
        }
        here = {key: value for key, value in given.items() if value is not None}
        return {**open_archive(self.root).key(), "stored_size": self.stored_size, **here}

    def scan(self) -> Contents:
        archive = open_archive(self.root)
        readings: Notes = []
        folders = _class_folders(archive, self.test_fraction, readings)
        contents = scan(archive, folders, self.stored_size, True, self.levels, readings)
        return in_order(contents, class_list(self.classes), f"root: {archive.path}")


def class_list(classes: str | Sequence[str] | None) -> str | list[str]:
    """The user's order of classes: "text", "number", or their names. UserError for anything else."""
    if classes is None or classes in ("text", "number"):
        return str(classes or "")
    if isinstance(classes, str):
        path = Path(classes).expanduser()
        if not path.is_file():
            raise UserError(
                f"classes: expected text, number, a list of names, or a file of them, got "
                f"{quoted(classes)}."
            )
        text = ordinary(path, 2**20, "classes").read_text("utf-8-sig", errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(classes, Mapping):
        return _by_their_numbers(classes)
    if not isinstance(classes, Sequence):
        raise UserError(
            f"classes: expected text, number, a list of names, or a file of them, got a "
            f"{type(classes).__name__}, which has no order."
        )
    return [str(name) for name in classes]


def _by_their_numbers(classes: Mapping[Any, Any]) -> list[str]:
    """Names in the order of their numbers, of {name: number} or {number: name}. UserError for others."""
    pairs = [*classes.items()]
    if not all(type(number) is int for _, number in pairs):
        pairs = [(name, number) for number, name in pairs]
    numbers = [number for _, number in pairs]
    if not all(type(one) is int for one in numbers) or sorted(numbers) != [*range(len(pairs))]:
        raise UserError(
            f"classes: expected names with the numbers 0 to {len(pairs) - 1}, each once, got "
            f"{quoted(dict(classes))}."
        )
    return [str(name) for name, _ in sorted(pairs, key=lambda pair: pair[1])]


def by_number(name: str) -> list[tuple[bool, int, str]]:
    """Key that sorts numbers in texts as numbers, as timm does: class2 before class10."""
    parts = [part for part in re.split(r"(\d+)", name.lower()) if part]
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]


def orders_apart(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first name of the order of numbers that is not in its place among ``names``, and the one that is.

    None if the orders are the same. names: in the order of texts.
    """
    pairs = zip(sorted(names, key=by_number), names, strict=True)
    return next(((number, text) for number, text in pairs if number != text), None)


def in_order(contents: Contents, order: str | list[str], where: str) -> Contents:
    """Return ``contents``, whose classes are in the order of texts, with them in another order.

    order: "text", "number", names, or "" for nobody's choice. Raises UserError for other names than
    the folders have.
    """
    text = contents.class_names
    number = tuple(sorted(text, key=by_number))
    given = as_spelled_in(order, text) if isinstance(order, list) else ()
    named = tuple(given) if isinstance(order, list) else {"number": number}.get(order, text)
    if sorted(named) != sorted(text):
        odd = sorted({*named} ^ {*text}) or [*named]
        raise UserError(
            f"classes: expected the names of the {len(text)} folders of classes, each once, got "
            f"{len(named)} names; they differ first in {quoted(odd[0])}. {where}."
        )
    places = np.array([named.index(name) for name in text])
    source = "as given" if order else "in the order of texts"
    apart = None if order else orders_apart(text)
    guess = apart is not None
    if apart is not None:
        source += (
            f", as torchvision has them; timm's train.py has {apart[0]} in the place of {apart[1]}"
        )
    option = "classes=number" if guess else "classes"
    first = ", ".join(named[:4]) + (" ..." if len(named) > 4 else "")
    contents.readings.insert(
        0, Reading("classes", f"{len(named)} folders ({first})", source, guess, option)
    )
    labels = {split: places[of] for split, of in contents.labels.items()}
    return dataclasses.replace(contents, class_names=named, labels=labels)


Folders = dict[str, dict[str, list[str]]]  # names of images by split and class


def scan(
    archive: Archive,
    folders: Folders,
    size: tuple[int, int],
    resize: bool = True,
    levels: Levels | None = None,
    readings: Notes | None = None,
) -> Contents:
    """List the images in ``folders`` of ``archive``; they become, or without ``resize`` must be, of ``size``."""
    where = f"root: {archive.path}"
    readings = [] if readings is None else readings
    names = _shared_classes(folders, where)
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
    images = functools.partial(decode_all, archive, places, size, resize, levels, readings)

    def some(wanted: Wanted) -> Iterator[tuple[Any, ...]]:
        only = [file for file, place in places.items() if is_wanted(wanted, *place)]
        yield from images(only=only)

    about: dict[str, Any] = {"readings": readings, "some": some}
    about["channels"] = _channels(archive, places, where)
    return Contents(tuple(map(readable, names)), labels, size, images, **about)


def _shared_classes(folders: Folders, where: str) -> tuple[str, ...]:
    """Names of the classes, in order. UserError for one class alone, and for one that a split has not."""
    for has, lacks in (("train", "test"), ("test", "train")):
        if missing := sorted(folders[has].keys() - folders[lacks].keys()):
            raise UserError(
                f"{where}: {len(missing)} of the classes in {has}/ have no images in {lacks}/: "
                f"{', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}. Both need the same "
                f"classes{_spelled_apart(missing, folders[lacks])}."
            )
    names = tuple(sorted(folders["train"]))
    if len(names) < 2:
        raise UserError(
            f"{where} has one class, {names[0]}; telling classes apart needs at least two."
        )
    return names


def _spelled_apart(names: Sequence[str], others: Collection[str]) -> str:
    """Return a clause for names that others have in other characters of Unicode; "" where they have none."""
    there = as_spelled_in(names, others)
    alike = next((name for name, other in zip(names, there, strict=True) if name != other), None)
    return f": {alike} is there in other characters of Unicode; rename one" if alike else ""


def _channels(archive: Archive, files: Collection[str], where: str) -> int:
    """Channels of the images: 3 of pictures, of arrays those of the first. UserError for both beside each other."""
    arrays = [file for file in files if file.lower().endswith(ARRAYS)]
    if not arrays:
        return 3
    if len(arrays) < len(files):
        raise UserError(
            f"{where}: {len(arrays)} of {len(files)} images are arrays, e.g. {arrays[0]}; "
            "expected pictures alone, or arrays alone."
        )
    return next(channels_in(data, file) for file, data in archive.read(arrays[:1]))


def class_folders(archive: Archive) -> Folders:
    """Names of all images by split and class. UserError for data sets of another form, by what they are."""
    return _class_folders(archive, None, [])


def readable(name: str) -> str:
    """Return a file's name as text that can be written: bytes that are no UTF-8 as \\xNN."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _drawn(archive: Archive, names: Sequence[str], share: float, readings: Notes) -> Folders:
    """Class folders without a split, of which ``share`` of each class tests."""
    files = sorted(name for name in names if is_image(name) and "/" in name)
    classes = [file.split("/")[-2] for file in files]
    if len({file.rpartition("/")[0] for file in files}) != len({*classes}):
        raise UserError(f"root: {archive.path}: folders of one name lie at several places.")
    numbers = np.unique(classes, return_inverse=True)[1] if files else np.zeros(0, dtype=int)
    test = {*stratified(numbers, round(share * len(files)), seed=0).tolist()}
    images: Folders = {split: defaultdict(list) for split in SPLITS}
    for place, (file, name) in enumerate(zip(files, classes, strict=True)):
        images["test" if place in test else "train"][name].append(file)
    drawn = f"{len(test)} of {len(files)} images, drawn from each class"
    readings.append(Reading("test images", drawn, "as given", option="test_fraction"))
    return images


def _class_folders(archive: Archive, test_fraction: float | None, readings: Notes) -> Folders:
    """Names in the archive of all images, by split and class; their folders may lie at any depth."""
    names = archive.names()
    folders = {folder for file in names if not hidden(file) for folder in file.split("/")[-3:-2]}
    train, test = _called(folders, TRAIN) or "train", _called(folders, TEST)
    # the test images of ImageNet have no classes: those of val/ stand in for them
    validation = _called(folders, VALIDATION)
    instead = bool(validation) and not test
    tests = validation if instead else test or "test"
    splits = {train: "train", tests: "test"}
    if test_fraction is not None:
        if {*splits} <= folders:
            raise UserError(
                f"test_fraction: {archive.path} has {train}/ and {tests}/ already; leave it out."
            )
        return _drawn(archive, names, test_fraction, readings)
    if instead:
        source = "there is no test/ with classes"
        readings.append(Reading("test images", f"those of {tests}/", source))
    _tell_left_out(archive, folders - splits.keys(), train, readings)
    images, others, roots = _by_split(archive, names, splits)
    _refuse_several(archive, roots)
    inside = tuple(f"{root}/{split}/".lstrip("/") for root in roots for split in splits)
    _refuse_astray(archive, [file for file in others if file.startswith(inside)])
    _refuse_empty(archive, images, names)
    return images


def _called(folders: Collection[str], names: Sequence[str]) -> str:
    """Return the folder that has one of these names, in any case; "" if none has."""
    exact = [name for name in names if name in folders]
    return next(iter(exact or sorted(of for of in folders if of.lower() in names)), "")


def _tell_left_out(archive: Archive, others: Collection[str], train: str, readings: Notes) -> None:
    """Say which folders of splits are not read. train: the folder of training images."""
    for folder in sorted(of for of in others if of.lower() in (*TRAIN, *TEST, *VALIDATION)):
        instead_of = f"images for validation are drawn from {train}/"
        log.warning("%s: its %s/ is left out; %s.", archive.path, folder, instead_of)
        readings.append(Reading(f"{folder}/", "left out", instead_of))


def _refuse_several(archive: Archive, roots: Collection[str]) -> None:
    """Raise UserError if splits lie in more than one folder."""
    if len(roots) > 1:
        raise UserError(
            f"root: {archive.path} holds {len(roots)} data sets, in "
            f"{', '.join(sorted(roots)[:3])}. Choose one of these folders."
        )


def _refuse_empty(archive: Archive, images: Folders, names: Sequence[str]) -> None:
    """Raise UserError for a split without images. names: all files, which may be those of another form."""
    for split in SPLITS:
        if not images[split]:
            usual = f"Expected {ImageFolder.expected} ({', '.join(SUFFIXES)})."
            raise UserError(
                f"root: {archive.path} has no images under {split}/<class>/. "
                f"{other_form(names, hidden) or usual}"
            )


def _refuse_astray(archive: Archive, files: Sequence[str]) -> None:
    """Raise UserError for images of a split that lie in no folder of a class."""
    if files:
        raise UserError(
            f"root: {archive.path}: {len(files)} images lie beside or below the folders of "
            f"classes, e.g. {min(files)}. Move or remove them."
        )


def _by_split(
    archive: Archive, names: Sequence[str], splits: Mapping[str, str]
) -> tuple[Folders, list[str], set[str]]:
    """Images by split and class, other images, and the folders in which splits lie."""
    images: Folders = {split: defaultdict(list) for split in SPLITS}
    others, roots = list[str](), set[str]()
    for file in names:
        *root, split, name, leaf = ("", "", *file.split("/"))
        if split not in splits or hidden(file):
            others += [file] if is_image(file) else []
            continue
        if not leaf.lower().endswith((*SUFFIXES, ARRAYS)):
            endings = ", ".join((*SUFFIXES, ARRAYS))
            raise UserError(f"root: {archive.path}: {file} is not an image; expected {endings}.")
        roots.add("/".join(part for part in root if part))
        images[splits[split]][name].append(file)
    return images, others, roots


def hidden(file: str) -> bool:
    return any(
        part.startswith((".", "__MACOSX")) or part.lower() in _IGNORED for part in file.split("/")
    )


def is_image(file: str) -> bool:
    return not hidden(file) and file.lower().endswith(SUFFIXES)


def is_array(file: str) -> bool:
    return not hidden(file) and file.lower().endswith(ARRAYS)


def decode_all(
    archive: Archive,
    places: dict[str, tuple[Any, ...]],
    size: Size,
    resize: bool,
    levels: Levels | None = None,
    readings: Notes | None = None,
    left_out: dict[str, UserError] | None = None,
    only: Collection[str] | None = None,
) -> Iterator[tuple[Any, ...]]:
    """(*place, pixels) of each file with a place, decoded by threads that never run far ahead of the reader.

    size, resize, levels: as for ``decode``; of files with more than 8 bits all have the same levels.
    readings: to which the way that those were read is added. left_out: takes the errors of files
    that cannot be read, by name. Without it UserError, after the last file, counts them, so that
    all can be replaced before the next try.
    only: the files that are decoded, None for all; the levels are those of all files in any case.
    """
    wanted = places if only is None else only
    faults: dict[str, UserError] = {} if left_out is None else left_out
    wide = OfSet(archive, places, [] if readings is None else readings)
    framed: list[str] = []

    def decode_chunk(chunk: list[tuple[str, bytes]]) -> list[tuple[Any, ...]]:
        images = []
        for file, data in chunk:
            where = f"{archive.path}: {file}"
            try:
                images.append(
                    (*places[file], decode(data, size, resize, where, levels or wide.levels))
                )
                if holds_frames(data):
                    framed.append(file)
            except UserError as error:
                faults[file] = error
        return images

    refuse_bombs()
    workers = os.cpu_count() or 1
    stream = archive.read(wanted, left_out)
    pending: deque[Future[list[tuple[Any, ...]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while chunk := _chunk(stream):
            pending.append(pool.submit(decode_chunk, chunk))
            heavy = sum(len(data) for _, data in chunk) > _HEAVY
            del chunk  # it may be half a gigabyte
            while len(pending) > (0 if heavy else 2 * workers):
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
    if framed and readings is not None:
        readings.append(first_frames(framed))
    if faults and left_out is None:
        raise _all_faults(faults, len(wanted))


def first_frames(framed: Collection[str]) -> Reading:
    """Return how files of several frames are read."""
    held = f"{counted(len(framed), 'file')} with several, e.g. {min(framed)}"
    return Reading("frames", f"the first of {held}", "the others are left out", True)


def _all_faults(faults: Mapping[str, UserError], images: int) -> UserError:
    """The error of the first file that cannot be read, with the number of the others."""
    first, *others = sorted(faults)
    if not others:
        return faults[first]
    named = ", ".join([*others[:4], *(["..."] if len(others) > 4 else [])])
    return UserError(
        f"{faults[first]} {len(others)} more of {images} images cannot be read either: {named}"
    )


def _chunk(stream: Iterator[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The next files, as many as make a task."""
    chunk, held = [], 0
    for file, data in stream:
        chunk.append((file, data))
        held += len(data)
        if len(chunk) == _CHUNK or held > _HEAVY:
            break
    return chunk


class OfSet:
    """The levels of a set's files of more than 8 bits, found once, when the first of them is met."""

    def __init__(self, archive: Archive, files: Collection[str], readings: Notes) -> None:
        self.archive, self.files, self.readings = archive, files, readings
        self.lock = threading.Lock()
        self.found: Levels | None = None

    def levels(self) -> Levels:
        with self.lock:
            if self.found is None:
                self.found = self._of_all()
            return self.found

    def _of_all(self) -> Levels:
        spread: Range | None = None
        for file, data in self.archive.read(self.files, {}):
            values = range_of(data, file)
            if values is not None and values.open:
                spread = values.joined(spread)
        if spread is None:
            raise UserError(f"root: {self.archive.path}: its files changed while they were read.")
        levels = levels_of(spread, str(self.archive.path))
        largest = f"the largest value of all files is {spread.largest:g}"
        guess = not certain(spread, levels)
        self.readings.append(Reading("levels", in_words(spread, levels), largest, guess, "levels"))
        return levels
