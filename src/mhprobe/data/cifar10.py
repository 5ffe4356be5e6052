"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels in ten classes.

It comes as torchvision's download, as the original python or binary batches, or as class folders;
these also in an archive.
"""

import io
import pickle
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from mhprobe.data import images
from mhprobe.data.archive import Archive, open_archive
from mhprobe.data.source import Contents, Wanted
from mhprobe.data.torchvisions import soon
from mhprobe.errors import UserError, refusing

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
UNFINISHED = {"cifar-10-python.tar.gz", ".lock"}  # what a download that was cut short leaves


class Cifar10:
    """CIFAR-10 from a folder, an archive or torchvision's download.

    root: folder or archive that has the images; an empty folder: download there.
    download_dir: where to download if root is None.
    """

    name = "cifar10"

    def __init__(
        self, root: str | Path | None = None, download_dir: str | Path = ".cache/mhprobe"
    ) -> None:
        self.root = (
            Path(root).expanduser()
            if root is not None
            else Path(download_dir).expanduser() / "cifar10"
        )
        self._may_download = root is None

    def key(self) -> dict[str, Any]:
        return self._archive().key()

    def scan(self) -> Contents:
        archive = self._archive()
        names = archive.names()
        if any(name.endswith("data_batch_1") for name in names):
            return _batches(archive, "", _load_batch)
        if any(name.endswith("data_batch_1.bin") for name in names):
            return _batches(archive, ".bin", _load_binary)
        return images.scan(archive, images.class_folders(archive), (32, 32), resize=False)

    def _archive(self) -> Archive:
        empty = self.root.is_dir() and {path.name for path in self.root.iterdir()} <= UNFINISHED
        if self._may_download or empty:
            _download(self.root)
        inner = self.root / "cifar-10-batches-py"
        # not the archive that torchvision leaves beside the folder it unpacked
        return open_archive(inner if inner.is_dir() else self.root)


def _download(folder: Path) -> None:
    """torchvision's download to ``folder``, once: the mark is set when it is complete."""
    complete = folder / ".complete"
    if complete.exists():
        return
    from torchvision.datasets import CIFAR10

    where, other = (
        f"CIFAR-10 could not be fetched from {URL} to {folder}",
        "root=<archive or folder you have>",
    )
    kinds = (OSError, RuntimeError)  # URLError is an OSError; RuntimeError: the file came damaged
    with refusing(
        lambda error: f"{where} ({error}). Without a network use {other} or data=digits.", kinds
    ):
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"), soon():  # every rank may come here at once
            CIFAR10(folder, download=True)  # checks what is there first
            complete.touch()


def _batches(
    archive: Archive, ending: str, load: Callable[[bytes, str], tuple[np.ndarray, np.ndarray]]
) -> Contents:
    """The original distribution, six files of 10,000 images each. load: reads one of them."""
    names = archive.names()
    files = {Path(name).name.removesuffix(ending): name for name in names if name.endswith(ending)}
    needed = [batch for batches in BATCHES.values() for batch in batches]
    if missing := [batch for batch in needed if batch not in files]:
        raise UserError(
            f"root: {archive.path} lacks {', '.join(missing)} of CIFAR-10's six batch files."
        )

    def loaded(batches: Collection[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Name, pixels (N, 3072) and labels (N,) of each batch."""
        for name, data in archive.read([files[batch] for batch in batches]):
            pixels, labels = load(data, f"{archive.path}: {name}")
            yield Path(name).name.removesuffix(ending), pixels, labels

    by_batch = {batch: labels for batch, _, labels in loaded(needed)}
    labels = {split: np.concatenate([by_batch[of] for of in BATCHES[split]]) for split in BATCHES}

    def decoded(wanted: Wanted | None = None) -> Iterator[tuple[str, int, np.ndarray]]:
        every = {split: np.arange(len(of)) for split, of in labels.items()}
        for split, positions in (every if wanted is None else wanted).items():
            there = {batch: pixels for batch, pixels, _ in loaded(BATCHES[split])}
            pixels = np.concatenate([there[of] for of in BATCHES[split]]).reshape(-1, 3, 32, 32)
            for i in positions.tolist():
                yield split, i, pixels[i].transpose(1, 2, 0)

    return Contents(CLASSES, labels, (32, 32), decoded, some=decoded)


def _load_binary(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, 3072) uint8 and (N,) int64 of one file of the binary version: a label and the pixels, image by image."""
    if not data or len(data) % 3073:
        raise UserError(
            f"root: {where} is not an intact CIFAR-10 batch: expected 3,073 bytes an image, got "
            f"{len(data):,} bytes. Fetch it again."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3073)
    if rows[:, 0].max() > 9:
        raise UserError(
            f"root: {where}: expected labels 0 to 9, got {rows[:, 0].max()}. Fetch it again."
        )
    return rows[:, 1:], rows[:, 0].astype(np.int64)


class _ArraysOnly(pickle.Unpickler):
    """A pickle can run code; CIFAR's hold lists, strings and numpy arrays, and nothing else is built from them."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}:
            return super().find_class(module, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            # numpy 2 has renamed its core, and either reads what the other wrote
            core = "numpy._core" if hasattr(np, "_core") else "numpy.core"
            return super().find_class(f"{core}.multiarray", name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _load_batch(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, 3072) uint8 and (N,) int64 of one batch file."""
    # a damaged pickle can raise nearly anything
    with refusing(
        lambda error: f"root: {where} is not an intact CIFAR-10 batch ({error}). Fetch it again."
    ):
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        batch = {
            key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()
        }
        pixels, labels = (
            np.asarray(batch["data"], dtype=np.uint8),
            np.asarray(batch["labels"], dtype=np.int64),
        )
    if labels.shape != (len(pixels),) or not len(labels) or pixels.shape != (len(labels), 3072):
        raise UserError(
            f"root: {where}: expected (N, 3072) pixels and as many labels, got {pixels.shape} and "
            f"{labels.shape}."
        )
    if labels.min() < 0 or labels.max() > 9:
        odd = labels[(labels < 0) | (labels > 9)][0]
        raise UserError(
            f"root: {where}: expected labels 0 to 9, got {odd}. Is it of CIFAR-10? Fetch it again."
        )
    return pixels, labels
