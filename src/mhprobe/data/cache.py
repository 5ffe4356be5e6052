"""Images decoded once: uint8 arrays on disk, memory-mapped, so that a batch is one gather.

A cache is a folder of .npy files and a meta.json with their sizes and checksums. It is built under
a lock in a temporary folder, which is renamed when it is complete. A damaged cache is built again.
It holds all images of a source, or those that were wanted, or only the labels of all.
"""

import errno
import functools
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from mhprobe.data.source import Contents, Scan, Source, Wanted
from mhprobe.errors import UserError, refusing
from mhprobe.io.code import code_digests, file_digest
from mhprobe.io.files import reason
from mhprobe.io.progress import progress
from mhprobe.io.readings import Reading, restored

DECODER = f"pillow {version('pillow')}"  # another one may round differently
FORMAT = 3  # raise it where a source of ours decodes the same files to other pixels
DIGESTS = "-digests.npy"
AT_ONCE = 256  # images between two movements of the progress bar


class NoneReadError(UserError):
    """None of the wanted images of a split can be read."""


@dataclass(frozen=True)
class CachedSplit:
    """One split: images (N, C, h, w) and objects (N, h, w) or None, uint8; labels (N,) int64; digests (N,) uint64.

    Of a split without decoded images only the labels are there. read: (N,) int64, the places of
    images that could be read, where some may not be.
    """

    folder: Path
    split: str

    @functools.cached_property
    def images(self) -> np.ndarray:
        return self._array("images", mmap_mode="r")

    @functools.cached_property
    def labels(self) -> np.ndarray:
        return self._array("labels")

    @functools.cached_property
    def digests(self) -> np.ndarray:
        return self._array("digests")

    @functools.cached_property
    def read(self) -> np.ndarray:
        return self._array("read")

    @functools.cached_property
    def objects(self) -> np.ndarray | None:
        exists = (self.folder / f"{self.split}-objects.npy").exists()
        return self._array("objects", mmap_mode="r") if exists else None

    def intact(self, rows: np.ndarray) -> bool:
        """Return True if the images in these rows, (N,), still have their digests."""
        for row in rows.tolist():
            mask = None if self.objects is None else self.objects[row]
            if _digest_of(self.images[row].transpose(1, 2, 0), mask) != self.digests[row]:
                return False
        return True

    def _array(self, name: str, **how: Any) -> np.ndarray:
        gone = f"cache_dir: {self.folder} is no longer there, or was cut off, while a run reads it"
        with refusing(
            lambda error: f"{gone} ({error}). Start it again: the images are decoded again."
        ):
            return np.load(self.folder / f"{self.split}-{name}.npy", **how)

    def __reduce__(self) -> Any:
        # a worker maps the file itself: pickling the map would copy every image
        return CachedSplit, (self.folder, self.split)


@dataclass(frozen=True)
class Cache:
    """Decoded images: the splits "train" and "test", and a checksum of all pixels, labels and class names.

    channels: of an image. readings: how the source was interpreted. decoded: splits with images.
    may_lack: some images may be unreadable, which only their decoding tells.
    """

    class_names: tuple[str, ...]
    size: tuple[int, int]
    splits: dict[str, CachedSplit]
    checksum: str
    channels: int
    readings: tuple[Reading, ...] = ()
    decoded: frozenset[str] = frozenset()
    may_lack: bool = False


def pixels_key(source: Source) -> dict[str, Any]:
    """Return what the decoded images of ``source`` depend on."""
    inner = getattr(source, "source", source)  # of a source that changes another one's images
    about = {"format": FORMAT, "decoder": DECODER, "code": code_digests(source, inner)}
    return {**about, "source": source.name, **source.key()}


def open_cache(
    source: Source,
    cache_dir: str | Path,
    verify: bool = True,
    show: bool = True,
    wanted: Wanted | None = None,
    key: Mapping[str, Any] | None = None,
    scan: Scan | None = None,
) -> Cache:
    """The decoded images of ``source``, built if absent or damaged.

    verify: recompute the checksums (half a second per GB), not only compare sizes. show: a bar
    while decoding. wanted: the images that are decoded; {} for none of them; None for all. Of a
    source that may lack some, ``CachedSplit.read`` says which are there. key: of ``pixels_key``, where it is
    known. scan: lists the source, where that may have been done before.
    """
    folder, key = _place(source, cache_dir, wanted, key)
    if (cache := _read(folder, verify)) is not None:
        return cache
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            # another process may have built it while this one waited
            return _read(folder, verify) or _build(scan or Scan(source), key, folder, show, wanted)
    except OSError as error:
        raise UserError(
            f"cache_dir: the decoded images cannot be written to {folder} "
            f"({reason(error, folder)}). Make room, or "
            f"choose another place with cache_dir=<folder>."
        ) from None


def find_cache(
    source: Source,
    cache_dir: str | Path,
    wanted: Wanted,
    looked_at: np.ndarray,
    key: Mapping[str, Any] | None = None,
) -> Cache | None:
    """The decoded images of one split as ``open_cache`` has them; None where they are absent.

    looked_at: positions among those wanted, (N,), which are checked; None where one is damaged.
    """
    cache = _read(_place(source, cache_dir, wanted, key)[0], verify=False)
    intact = cache and all(cache.splits[split].intact(looked_at) for split in wanted)
    return cache if intact else None


def _place(
    source: Source, cache_dir: str | Path, wanted: Wanted | None, key: Mapping[str, Any] | None
) -> tuple[Path, dict[str, Any]]:
    """The folder of a cache, and the key that names it."""
    key = dict(pixels_key(source) if key is None else key)
    if wanted is not None:
        positions = {split: of.astype("<i8").tobytes() for split, of in wanted.items()}
        key["wanted"] = {
            split: hashlib.sha256(of).hexdigest() for split, of in sorted(positions.items())
        }
    root = Path(cache_dir).expanduser() / "images"
    return root / f"{source.name}-{_digest(key)[:16]}", key


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, verify: bool) -> Cache | None:
    """The cache in ``folder``, or None when it is absent or not what its meta.json says."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        body = meta["body"]
        if meta["sha256"] != _digest(body):
            return None
        for name, facts in body["files"].items():
            file = folder / name
            if file.stat().st_size != facts["bytes"] or (
                verify and file_digest(file) != facts["sha256"]
            ):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    files = {
        name: facts["sha256"] for name, facts in body["files"].items() if not name.endswith(DIGESTS)
    }
    return Cache(
        class_names=tuple(body["class_names"]),
        size=tuple(body["size"]),
        splits={split: CachedSplit(folder, split) for split in body["splits"]},
        checksum=_digest([body["class_names"], files]),
        channels=body["channels"],
        readings=restored(body.get("readings", ())),
        decoded=frozenset(body["decoded"]),
        may_lack=body.get("may_lack", False),
    )


def _build(
    scan: Scan, key: dict[str, Any], folder: Path, show: bool, wanted: Wanted | None
) -> Cache:
    """Decode the wanted images of a source to ``folder``.

    The caller holds the lock, so a partial folder is a killed builder's.
    """
    source = scan.source
    contents = scan()
    positions = _positions(contents, wanted, source.name)
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        arrays = {
            split: _Decoded(temporary, split, contents, of) for split, of in positions.items()
        }
        _make_room(temporary, [path for decoded in arrays.values() for path in decoded.paths])
        total = sum(map(len, positions.values()))
        written = _decode(contents, wanted, arrays, f"decoding {source.name}", show) if total else 0
        if written != total and not contents.may_lack:
            raise UserError(
                f"{source.name}: {total} images were listed, but {written} read. Did the files "
                "change?"
            )
        for split, decoded in arrays.items():
            decoded.finish(source.name)
            _compare(folder, split, decoded.digests, source.name)
        _save_labels(temporary, contents, arrays)
        del arrays
        _describe(temporary, contents, key, positions)
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(
            folder, ignore_errors=True
        )  # a damaged one; whoever mapped it keeps the old pages
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if (cache := _read(folder, verify=False)) is None:
        raise RuntimeError(f"{folder} cannot be read right after it was written")
    return cache


def _positions(
    contents: Contents, wanted: Wanted | None, name: str
) -> dict[str, np.ndarray[Any, Any]]:
    """The positions of the images to decode, by split: the wanted ones, or all.

    UserError for a split that there is not.
    """
    if wanted is None:
        return _all(contents)
    if missing := [split for split in wanted if split not in contents.labels]:
        raise UserError(
            f"{name}: expected splits {', '.join(contents.labels)}, got {', '.join(missing)}."
        )
    return {split: wanted[split] for split in wanted}


def _all(contents: Contents) -> dict[str, np.ndarray[Any, Any]]:
    return {split: np.arange(len(labels)) for split, labels in contents.labels.items()}


def _save_labels(folder: Path, contents: Contents, arrays: Mapping[str, "_Decoded"]) -> None:
    """Save the labels of each decoded image, of all where nothing is decoded, and which could be read."""
    every = {split: arrays[split].kept for split in arrays} or _all(contents)
    for split, kept in every.items():
        _save(folder / f"{split}-labels.npy", contents.labels[split][kept])
        if contents.may_lack:
            _save(folder / f"{split}-read.npy", kept)


def _describe(
    folder: Path, contents: Contents, key: dict[str, Any], positions: Mapping[str, Any]
) -> None:
    """Write meta.json: what the files beside it are, with their digests."""
    paths = sorted(folder.glob("*.npy"))
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in paths
    }
    body: dict[str, Any] = {
        "key": key,
        "class_names": contents.class_names,
        "size": contents.size,
        "channels": contents.channels,
        "may_lack": contents.may_lack,
        "files": files,
        "splits": sorted(positions or contents.labels),
        "decoded": sorted(positions),
        "readings": [reading.plain() for reading in dict.fromkeys(contents.readings)],
    }
    text = json.dumps({"sha256": _digest(body), "body": body}, indent=1)
    (folder / "meta.json").write_text(text)


def _decode(
    contents: Contents,
    wanted: Wanted | None,
    arrays: Mapping[str, "_Decoded"],
    words: str,
    show: bool,
) -> int:
    """Put the wanted images into their arrays, with a bar; return their number."""
    total, written = sum(len(of.positions) for of in arrays.values()), 0
    with progress(words, total, show=show) as done:
        for written, (split, position, *parts) in enumerate(contents.walk(wanted), 1):
            arrays[split].put(position, *parts)
            if written % AT_ONCE == 0 or written == total:
                done((written - 1) % AT_ONCE + 1)
    return written


def _digest_of(image: np.ndarray, mask: np.ndarray | None) -> int:
    """The digest of an image (h, w, C) and of its mask of objects (h, w)."""
    digest = hashlib.blake2b(image.tobytes(), digest_size=8)
    if mask is not None:
        digest.update(mask.tobytes())
    return int.from_bytes(digest.digest(), "little")


class _Decoded:
    """The arrays of one split while they are filled.

    positions: (N,) of the images in the split, ascending. digests: (N,) uint64, one of each image's
    pixels. kept: (N,) positions of those that were there, after ``finish``.
    """

    def __init__(self, folder: Path, split: str, contents: Contents, positions: np.ndarray) -> None:
        self.positions = self.kept = positions
        count, size = len(positions), contents.size
        self.digests = np.zeros(count, dtype="<u8")
        self.there = np.zeros(count, dtype=bool)
        shapes = {
            "images": (count, contents.channels, *size),
            **({"objects": (count, *size)} if contents.objects else {}),
        }
        files = {folder / f"{split}-{name}.npy": shape for name, shape in shapes.items()}
        self.arrays = [
            np.lib.format.open_memmap(path, "w+", np.uint8, shape) for path, shape in files.items()
        ]
        self.digest_path, self.paths = folder / f"{split}{DIGESTS}", list(files)

    def put(self, position: int, image: np.ndarray, mask: np.ndarray | None = None) -> None:
        expected = self.arrays[0].shape[1]
        if image.shape[-1] != expected:
            raise UserError(
                f"{self.digest_path.name.removesuffix(DIGESTS)}: image {position} has "
                f"{image.shape[-1]} channels, expected {expected} as the first. Give all the same."
            )
        row = int(np.searchsorted(self.positions, position))
        self.there[row] = True
        self.arrays[0][row] = image.transpose(2, 0, 1)
        if mask is not None:
            self.arrays[1][row] = mask
        self.digests[row] = _digest_of(image, mask)

    def finish(self, name: str) -> None:
        """Write all, without rows that no image took.

        NoneReadError if there is none.
        """
        if not self.there.any():
            raise NoneReadError(
                f"{name}: none of its {len(self.there)} images of one split can be read."
            )
        for number, array in enumerate(self.arrays):
            if not self.there.all():
                self.arrays[number] = _closed_up(array, self.there, self.paths[number])
            self.arrays[number].flush()
        self.digests, self.kept = self.digests[self.there], self.positions[self.there]
        _save(self.digest_path, self.digests)


def _closed_up(array: np.ndarray, there: np.ndarray, path: Path) -> Any:
    """The file of ``array`` written anew, image by image, with those that are there."""
    smaller = path.with_suffix(".closed")
    kept = np.flatnonzero(there)
    new = np.lib.format.open_memmap(smaller, "w+", array.dtype, (len(kept), *array.shape[1:]))
    for place, number in enumerate(kept):
        new[place] = array[number]
    os.replace(smaller, path)
    return new


def _make_room(folder: Path, paths: list[Path]) -> None:
    """Reserve the blocks of files that were only made long.

    A page that finds no block later is a SIGBUS, no error.
    """
    needed = sum(path.stat().st_size for path in paths)
    free = shutil.disk_usage(folder).free
    try:
        if needed > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for path in paths:
            with path.open("r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise UserError(
            f"cache_dir: the decoded images need {needed:,} bytes in {folder.parent}, which has "
            f"{free:,} free "
            f"({error.strerror}). Make room, choose another place with cache_dir=<folder>, or "
            "store smaller images "
            f"(stored_size)."
        ) from None


def _compare(before: Path, split: str, digests: np.ndarray, name: str) -> None:
    """The same files, by size and time, must decode to the same pixels as when they were last decoded."""
    try:
        body = json.loads((before / "meta.json").read_text())["body"]
        path = before / f"{split}{DIGESTS}"
        if file_digest(path) != body["files"][path.name]["sha256"]:
            return
        changed = np.flatnonzero(np.load(path) != digests)
    except (OSError, ValueError, KeyError, TypeError):
        return
    if len(changed):
        raise UserError(
            f"root: {len(changed)} images of {name}, the first is number {changed[0]} of {split}, "
            "decode to other "
            "pixels than before although the files have the same size and time: they were damaged "
            "on disk. Fetch them "
            f"again, or remove {before} if they were changed on purpose."
        )


def _save(path: Path, array: Any) -> None:
    """Save an array by Python's own write: np.save does not notice a full disk."""
    data = io.BytesIO()
    np.save(data, array)
    path.write_bytes(data.getvalue())
