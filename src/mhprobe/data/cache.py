"""Images decoded once: uint8 arrays on disk, memory-mapped, so that a batch is one gather.

A cache is a folder of .npy files and a meta.json that lists their sizes and checksums. It is built in a temporary
folder and renamed when complete, under a lock, so a killed or a second process can do no harm; a damaged one is
built again.

Shapes: N images of a split, height x width pixels.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mhprobe.data.source import Source
from mhprobe.errors import UserError
from mhprobe.io.progress import progress

FORMAT = 1


@dataclass(frozen=True)
class CachedSplit:
    """One split's images (N, 3, height, width) uint8, memory-mapped, and labels (N,) int64.

    objects: (N, height, width) uint8, memory-mapped, where the source tells what each pixel shows.
    """

    folder: Path
    split: str

    @functools.cached_property
    def images(self) -> np.ndarray:
        return np.load(self.folder / f"{self.split}-images.npy", mmap_mode="r")

    @functools.cached_property
    def labels(self) -> np.ndarray:
        return np.load(self.folder / f"{self.split}-labels.npy")

    @functools.cached_property
    def objects(self) -> np.ndarray | None:
        path = self.folder / f"{self.split}-objects.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    def __getstate__(self) -> dict[str, Any]:
        # a worker process maps the file itself; pickling the map would copy every image
        return {"folder": self.folder, "split": self.split}


@dataclass(frozen=True)
class Cache:
    """``splits``: "train" and "test". ``checksum``: of all pixels, labels and class names, wherever they came from."""

    class_names: tuple[str, ...]
    size: tuple[int, int]
    splits: dict[str, CachedSplit]
    checksum: str


def open_cache(source: Source, cache_dir: str | Path, verify: bool = True, show: bool = True) -> Cache:
    """The decoded images of ``source``, built if absent or damaged.

    verify: recompute the checksums (about half a second per GB); otherwise only the files' sizes are compared.
    show: draw a progress bar while decoding.
    """
    import filelock

    key = {"format": FORMAT, "source": source.name, **source.key()}
    root = Path(cache_dir).expanduser() / "images"
    folder = root / f"{source.name}-{_digest(key)[:16]}"
    cache = _read(folder, verify)
    if cache is not None:
        return cache
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            cache = _read(folder, verify)  # another process may have built it while this one waited
            if cache is None:
                _build(source, key, folder, show)
                cache = _read(folder, verify=False)
    except OSError as error:
        raise UserError(
            f"cache_dir: the decoded images cannot be written to {folder} ({error.strerror or error}). Choose another "
            f"place with cache_dir=<folder>."
        ) from None
    if cache is None:
        raise RuntimeError(f"{folder} cannot be read right after it was written")
    return cache


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path, verify: bool) -> Cache | None:
    """The cache in ``folder``, or None when it is absent or not what its meta.json says."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        body = meta["body"]
        intact = meta["sha256"] == _digest(body) and all(
            (folder / name).stat().st_size == facts["bytes"]
            and (not verify or _file_digest(folder / name) == facts["sha256"])
            for name, facts in body["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not intact:
        return None
    contents = [body["class_names"], {name: facts["sha256"] for name, facts in body["files"].items()}]
    return Cache(
        class_names=tuple(body["class_names"]),
        size=tuple(body["size"]),
        splits={split: CachedSplit(folder, split) for split in body["splits"]},
        checksum=_digest(contents),
    )


def _build(source: Source, key: dict[str, Any], folder: Path, show: bool) -> None:
    """Decode ``source`` to ``folder``. The caller holds the lock, so a partial folder is a killed builder's."""
    contents = source.scan()
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        arrays = {
            split: np.lib.format.open_memmap(
                temporary / f"{split}-images.npy", mode="w+", dtype=np.uint8, shape=(len(labels), 3, *contents.size)
            )
            for split, labels in contents.labels.items()
        }
        masks = {
            split: np.lib.format.open_memmap(
                temporary / f"{split}-objects.npy", mode="w+", dtype=np.uint8, shape=(len(labels), *contents.size)
            )
            for split, labels in contents.labels.items()
            if contents.objects
        }
        total = sum(len(labels) for labels in contents.labels.values())
        written = 0
        with progress(f"decoding {source.name}", total, show=show) as done:
            for split, position, image, *mask in contents.images():
                arrays[split][position] = image.transpose(2, 0, 1)
                if mask:
                    masks[split][position] = mask[0]
                written += 1
                if written % 256 == 0:
                    done(256)
        if written != total:
            raise UserError(f"{source.name}: {total} images were listed, but {written} read. Did the files change?")
        for array in (*arrays.values(), *masks.values()):
            array.flush()
        for split, labels in contents.labels.items():
            np.save(temporary / f"{split}-labels.npy", labels)
        del arrays, masks
        body = {
            "key": key,
            "class_names": contents.class_names,
            "size": contents.size,
            "splits": sorted(contents.labels),
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": _file_digest(path)}
                for path in sorted(temporary.glob("*.npy"))
            },
        }
        (temporary / "meta.json").write_text(json.dumps({"sha256": _digest(body), "body": body}, indent=1))
        for path in temporary.iterdir():
            _sync(path)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one; whoever mapped it keeps the old pages
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
