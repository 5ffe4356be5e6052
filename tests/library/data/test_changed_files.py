"""The decoded images follow their files: whatever changes the contents is another cache, also where times are kept."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from data_sets import class_files, encoded, write_folder, write_pets, write_tar, write_zip
from mhprobe.data import archive
from mhprobe.data.cache import open_cache
from mhprobe.data.images import ImageFolder
from mhprobe.data.pets import Pets
from mhprobe.data.photos import Photos
from mhprobe.errors import UserError


def flat(grey: int) -> bytes:
    """Images of one shade, all of one size in bytes."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), grey, np.uint8)).save(buffer, "BMP")
    return buffer.getvalue()


def files(shift: int = 0) -> dict[str, bytes]:
    names = [
        f"{split}/{name}/{i}.bmp"
        for split in ("train", "test")
        for name in ("cat", "dog")
        for i in range(2)
    ]
    return {name: flat(10 * number + shift) for number, name in enumerate(names)}


def greys(root: Path, cache_dir: Path) -> list[int]:
    cache = open_cache(ImageFolder(root, 16), cache_dir, show=False)
    return [
        int(image[0, 0, 0]) for split in ("train", "test") for image in cache.splits[split].images
    ]


def keep_times(path: Path, change) -> None:
    """Change a file as ``cp -p``, ``rsync -t`` and ``tar`` do."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def in_place(path: Path) -> None:
    path.write_bytes(flat(200))


def by_another(path: Path) -> None:
    path.with_suffix(".new").write_bytes(flat(200))
    os.replace(path.with_suffix(".new"), path)


@pytest.fixture
def unread(monkeypatch) -> None:
    """As if each file were one of so many that none of its blocks is read."""
    monkeypatch.setattr(archive, "_sample", lambda path, parts: b"")


@pytest.mark.parametrize("change", [in_place, by_another])
def test_new_pixels_with_the_old_size_and_time_are_seen(tmp_path, unread, change):
    root = write_folder(tmp_path / "set", files())
    assert greys(root, tmp_path) == [10 * i for i in range(8)]
    keep_times(root / "test" / "dog" / "1.bmp", change)
    assert greys(root, tmp_path) == [*range(0, 70, 10), 200]
    assert greys(root, tmp_path) == [
        *range(0, 70, 10),
        200,
    ]  # and a second cache, not a damaged first


def test_classes_that_exchange_their_names_are_seen(tmp_path):
    root = write_folder(tmp_path / "set", files())
    for file in root.rglob("*.bmp"):
        os.utime(file, ns=(0, 0))
    greys(root, tmp_path)
    (root / "test" / "cat").rename(root / "kept")
    (root / "test" / "dog").rename(root / "test" / "cat")
    (root / "kept").rename(root / "test" / "dog")
    assert greys(root, tmp_path)[4:] == [60, 70, 40, 50]


def test_a_linked_file_that_changes_is_seen(tmp_path, unread):
    root, beside = write_folder(tmp_path / "set", files()), tmp_path / "beside.bmp"
    link = root / "train" / "cat" / "0.bmp"
    link.unlink()
    beside.write_bytes(flat(3))
    link.symlink_to(beside)
    assert greys(root, tmp_path)[0] == 3
    beside.write_bytes(flat(4))
    assert greys(root, tmp_path)[0] == 4
    other = tmp_path / "other.bmp"
    other.write_bytes(flat(5))
    link.unlink()
    link.symlink_to(other)
    assert greys(root, tmp_path)[0] == 5


@pytest.mark.parametrize(("name", "write"), [("set.tar", write_tar), ("set.zip", write_zip)])
def test_an_archive_that_is_written_anew_with_its_old_time_is_seen(tmp_path, unread, name, write):
    path = write(tmp_path / name, files())
    assert greys(path, tmp_path)[0] == 0
    keep_times(path, lambda path: write(path, files(shift=1)))
    assert greys(path, tmp_path)[0] == 1


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_contents_are_looked_at_where_a_file_system_invents_the_rest(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(archive, "_state", lambda path: "as ever")

    def write(shift):
        return (
            write_folder(tmp_path / "a", files(shift))
            if kind == "folder"
            else write_tar(tmp_path / "a.tar", files(shift))
        )

    before, again, after = (ImageFolder(write(shift)).key() for shift in (0, 0, 1))
    assert before == again != after


def test_a_key_reads_a_few_blocks_of_many_files(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(archive, "_sample", lambda path, parts: opened.append(path) or b"")
    write_folder(tmp_path / "set", {f"{i}.png": b"x" for i in range(1000)})
    Photos(tmp_path / "set").key()
    assert archive.SAMPLES <= len(opened) < 2 * archive.SAMPLES


def test_what_torchvision_unpacked_is_looked_at_too(tmp_path):
    root = write_pets(tmp_path / "pets", each=4)
    before = Pets(root, 16).key()
    assert Pets(root, 16).key() == before
    (picture, *_) = sorted((root / "oxford-iiit-pet" / "images").iterdir())
    keep_times(picture, lambda path: path.write_bytes(path.read_bytes()[:-2] + b"\0\0"))
    assert Pets(root, 16).key() != before


SOURCE = """
import numpy as np
from mhprobe.data.source import Contents

class Mine:
    name = "mine"

    def key(self):
        return {}

    def scan(self):
        labels = np.zeros(4, dtype=np.int64)
        walk = lambda: ((s, i, np.full((4, 4, 3), GREY, np.uint8)) for s in ("train", "test") for i in range(4))
        return Contents(("a", "b"), {"train": labels, "test": labels}, (4, 4), walk)
"""


def test_a_source_of_ones_own_that_is_edited_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    for grey in (7, 8):
        (tmp_path / "own_source.py").write_text(f"GREY = {grey}\n{SOURCE}")
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        monkeypatch.delitem(sys.modules, "own_source", raising=False)
        cache = open_cache(
            importlib.import_module("own_source").Mine(), tmp_path / "cache", show=False
        )
        seen.append(int(cache.splits["train"].images[0, 0, 0, 0]))
    assert seen == [7, 8]


def ramp(dtype, top: float) -> np.ndarray:
    """A grey ramp from black to ``top``, 16 x 16."""
    return np.linspace(0, top, 256).reshape(16, 16).astype(dtype)


def stored(pixels: np.ndarray, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def pgm(pixels: np.ndarray) -> bytes:
    return b"P5 16 16 65535\n" + pixels.astype(">u2").tobytes()


def first_image(tmp_path, name: str, data: bytes) -> np.ndarray:
    root = write_folder(
        tmp_path / "set", class_files(width=16, height=16) | {f"train/cat/{name}": data}
    )
    return open_cache(ImageFolder(root, 16), tmp_path, show=False).splits["train"].images[-3 - 1]


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_sixteen_bits_are_read_as_the_shades_that_they_are(tmp_path, kind):
    pixels = ramp(np.uint16, 60_000)  # of steps whose upper and lower bits are not the same
    data = pgm(pixels) if kind == "pgm" else stored(pixels, kind.upper())
    found = first_image(tmp_path, f"9.{kind}", data)
    np.testing.assert_array_equal(found, np.repeat(pixels[None] >> 8, 3, axis=0))
    assert len(np.unique(found)) > 200  # all white it would be one shade


@pytest.mark.parametrize(
    ("dtype", "words"), [(np.int32, "whole numbers of 32 bits"), (np.float32, "floating-point")]
)
def test_pixels_without_a_white_are_refused_by_name(tmp_path, dtype, words):
    with pytest.raises(UserError, match=rf"train/cat/9\.tiff has {words}.* expected 8 or 16 bits"):
        first_image(tmp_path, "9.tiff", stored(ramp(dtype, 1), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_camera_that_was_held_sideways_gives_upright_images(tmp_path, orientation, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = stored(pixels, kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = first_image(tmp_path, f"9.{kind.lower()}", data)
    np.testing.assert_array_equal(found, np.asarray(expected).transpose(2, 0, 1))
    assert (orientation == 1) == np.array_equal(found, pixels.transpose(2, 0, 1))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_turns_nothing(tmp_path):
    pixels = np.asarray(Image.open(io.BytesIO(encoded(3, 16, 16))))
    data = stored(pixels, "PNG", exif=b"Exif\0\0MM\0*\0\0\xff\xff\xff")
    np.testing.assert_array_equal(first_image(tmp_path, "9.png", data), pixels.transpose(2, 0, 1))
