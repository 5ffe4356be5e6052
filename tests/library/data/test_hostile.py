"""Archives that are damaged or malicious, folders without end, full disks: one line, and nothing half-made is left."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import resource
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_sets import Noise, class_files, encoded, write_folder, write_tar, write_zip
from mhprobe.data import archive
from mhprobe.data.archive import LARGEST, open_archive
from mhprobe.data.cache import open_cache
from mhprobe.data.images import ImageFolder
from mhprobe.errors import UserError

FILES = class_files(train=4, test=3)
WRITERS = {".tar": write_tar, ".tar.gz": write_tar, ".zip": write_zip, "": write_folder}


def pixels(root: Path, cache_dir: Path) -> list[np.ndarray]:
    cache = open_cache(ImageFolder(root, stored_size=32), cache_dir, show=False)
    return [
        np.array(part)
        for split in ("train", "test")
        for part in (cache.splits[split].images, cache.splits[split].labels)
    ]


def answer(root: Path, cache_dir: Path) -> str:
    with pytest.raises(UserError) as error:
        pixels(root, cache_dir)
    assert "\n" not in str(error.value)
    assert not [
        path for path in cache_dir.rglob("*") if ".partial" in path.name or path.suffix == ".npy"
    ]
    return str(error.value)


# damage


@pytest.mark.parametrize("kind", [".tar.gz", ".zip"])
def test_any_flipped_bit_of_a_packed_archive_is_found_or_changes_no_pixel(tmp_path, kind):
    """JPEG has no checksum of its own: only the archive's can tell."""
    files = {name.replace("png", "jpg"): encoded(i, format="JPEG") for i, name in enumerate(FILES)}
    whole = WRITERS[kind](tmp_path / f"whole{kind}", files)
    right, data = pixels(whole, tmp_path / "whole"), whole.read_bytes()
    found = 0
    for number, where in enumerate(np.random.default_rng(0).integers(0, 8 * len(data), 40)):
        flipped = bytearray(data)
        flipped[where // 8] ^= 1 << where % 8
        path = tmp_path / f"{number}{kind}"
        path.write_bytes(flipped)
        try:
            for ours, theirs in zip(pixels(path, tmp_path / "flipped"), right, strict=True):
                np.testing.assert_array_equal(ours, theirs)
        except UserError as error:
            assert path.name in str(error)
            found += 1
    assert found > 20  # most bits are pixels


@pytest.mark.parametrize("kind", [".tar", ".tar.gz"])
def test_a_tar_cut_between_two_files_is_not_a_smaller_data_set(tmp_path, kind):
    whole = write_tar(tmp_path / "whole.tar", FILES).read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as tar:
        cut = whole[: tar.getmembers()[-1].offset]
    path = tmp_path / f"cut{kind}"
    path.write_bytes(gzip.compress(cut) if kind == ".tar.gz" else cut)
    assert "cut short" in answer(path, tmp_path / "cache")


def test_a_tar_is_held_against_the_sum_that_lies_beside_it(tmp_path):
    path = write_tar(tmp_path / "a.tar", FILES)
    beside = tmp_path / "a.tar.sha256"
    beside.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  a.tar\n")
    pixels(path, tmp_path / "cache")
    beside.write_text(f"{'0' * 64}  a.tar\n")
    assert "a.tar.sha256" in answer(path, tmp_path / "other")


def test_an_image_that_rotted_on_disk_is_named_when_it_is_decoded_again(tmp_path, monkeypatch):
    # a disk that rots sets no time; writing, which stands in for it here, does
    monkeypatch.setattr(archive, "_state", lambda path: str(path.stat().st_size))
    monkeypatch.setattr(archive, "_sample", lambda path, parts: b"")
    files = {
        f"{split}/{name}/0.bmp": encoded(i, format="BMP")
        for i, (split, name) in enumerate(
            (split, name) for split in ("train", "test") for name in ("cat", "dog")
        )
    }
    root = write_folder(tmp_path / "root", files)
    before = pixels(root, tmp_path / "cache")
    (folder,) = [path for path in (tmp_path / "cache" / "images").iterdir() if path.is_dir()]
    (folder / "train-images.npy").write_bytes(b"")  # a reason to decode again
    np.testing.assert_array_equal(pixels(root, tmp_path / "cache")[0], before[0])
    (folder / "train-images.npy").write_bytes(b"")
    rotten = root / "train" / "dog" / "0.bmp"
    times, data = rotten.stat(), bytearray(rotten.read_bytes())
    data[-5] ^= 64
    rotten.write_bytes(data)
    os.utime(rotten, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match="number 1 of train"):
        pixels(root, tmp_path / "cache")


@pytest.mark.parametrize("kind", [".tar", ".tar.gz", ".zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_repeated_member_is_refused_by_name(tmp_path, kind):
    path = WRITERS[kind](tmp_path / f"a{kind}", FILES)
    name = next(iter(FILES))
    if kind == ".zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, FILES[name])
    else:
        with tarfile.open(path, "w:gz" if kind == ".tar.gz" else "w") as tar:
            for member in (*FILES, f"./{name}"):  # another way to write the same name
                info = tarfile.TarInfo(member)
                info.size = len(FILES[member.removeprefix("./")])
                tar.addfile(info, io.BytesIO(FILES[member.removeprefix("./")]))
    line = answer(path, tmp_path / "cache")
    assert name in line and "2 times" in line


# folders


def test_a_folder_that_leads_back_into_itself_is_refused(tmp_path):
    root = write_folder(tmp_path / "root", FILES)
    (root / "train" / "cat" / "loop").symlink_to("..")
    line = answer(root, tmp_path / "cache")
    assert "loop" in line and "link" in line


def test_class_folders_may_be_links(tmp_path):
    root = write_folder(tmp_path / "root", FILES)
    (root / "train" / "dog").rename(tmp_path / "dogs")
    (root / "train" / "dog").symlink_to(tmp_path / "dogs")
    np.testing.assert_array_equal(
        pixels(root, tmp_path / "cache")[0],
        pixels(write_folder(tmp_path / "plain", FILES), tmp_path / "cache")[0],
    )


def packed(path: Path, files: dict[str, bytes], links: dict[str, tuple[bytes, str]]) -> Path:
    """A tar with links: the kind, hard or symbolic, and where each leads."""
    write_tar(path, files)
    with tarfile.open(path, "a:") as tar:
        for name, (kind, target) in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return path


def test_links_in_a_tar_are_the_images_that_they_lead_to(tmp_path):
    """tar writes the second of two hard links so, and it was missing in the data without a word."""
    last = max(name for name in FILES if name.startswith("train/cat/"))
    first = min(name for name in FILES if name.startswith("train/cat/"))
    rest = {name: data for name, data in FILES.items() if name != last}
    twice = write_folder(tmp_path / "twice", {**rest, last: FILES[first]})
    links = [(tarfile.LNKTYPE, first), (tarfile.SYMTYPE, Path(first).name)]
    for number, link in enumerate(links):
        path = packed(tmp_path / f"{number}.tar", rest, {last: link})
        np.testing.assert_array_equal(
            pixels(path, tmp_path / "cache")[0], pixels(twice, tmp_path / "cache")[0]
        )


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("train/cat/odd.png", "/etc/passwd"),
        ("train/cat/odd.png", "../../../../etc/passwd"),
        ("train/cat/odd.png", "odd.png"),
        ("train/cow", "/data/cows"),
        ("train/cow", "dog"),
    ],
)
def test_a_link_in_a_tar_that_leads_to_no_file_in_it_is_named(tmp_path, name, target):
    path = packed(tmp_path / "a.tar", FILES, {name: (tarfile.SYMTYPE, target)})
    assert f"{name} is a link to" in answer(path, tmp_path / "cache")


def test_links_in_a_tar_that_are_no_images_change_nothing(tmp_path):
    links = {"LICENSE.txt": (tarfile.SYMTYPE, "/gone"), ".git": (tarfile.SYMTYPE, "/gone")}
    path = packed(tmp_path / "a.tar", FILES, links)
    plain = write_tar(tmp_path / "b.tar", FILES)
    np.testing.assert_array_equal(
        pixels(path, tmp_path / "cache")[0], pixels(plain, tmp_path / "cache")[0]
    )


def test_links_that_double_at_every_level_end_soon(tmp_path):
    root = write_folder(tmp_path / "root", FILES)
    for level in range(40):
        folder = tmp_path / f"level{level}"
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(tmp_path / f"level{level + 1}")
    (tmp_path / "level40").mkdir()
    (root / "more").symlink_to(tmp_path / "level0")
    assert "link" in answer(root, tmp_path / "cache")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_sparse_giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * LARGEST)


def a_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [a_pipe, zeros_without_end, a_sparse_giant, a_dangling_link])
def test_what_is_no_file_or_too_large_is_named_and_not_read(tmp_path, make):
    root = write_folder(tmp_path / "root", FILES)
    make(root / "train" / "cat" / "odd.png")
    assert "odd.png" in answer(root, tmp_path / "cache")


def test_a_pipe_as_the_root_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(UserError, match="expected a folder or"):
        open_archive(tmp_path / "a.tar")


# bombs


def test_a_tar_member_of_a_terabyte_is_refused_from_its_header(tmp_path):
    path = tmp_path / "a.tar"
    info = tarfile.TarInfo("train/cat/big.png")
    info.size = 10**12
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "big.png" in answer(path, tmp_path / "cache")


def test_a_zip_member_of_three_gigabytes_is_refused_from_its_header(tmp_path):
    path = write_zip(tmp_path / "a.zip", FILES)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (3 * 2**30).to_bytes(4, "little")
    path.write_bytes(data)
    assert next(iter(FILES)) in answer(path, tmp_path / "cache")


def test_an_image_of_a_billion_pixels_is_refused(tmp_path, monkeypatch):
    """PIL only warns between its limit and twice that; it tries what it cuts, too, here 32 x 32."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    for number, side in enumerate((50, 70)):
        root = write_folder(tmp_path / str(side), class_files(width=31, height=31))
        (root / "train" / "cat" / "bomb.png").write_bytes(encoded(0, width=side, height=side))
        line = answer(root, tmp_path / f"cache{number}")
        assert (
            "bomb.png has more than the 2,000 pixels that are read" in line
            and "damaged" not in line
        )


# full disks


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this machine does not let tests mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def small_files(kilobytes: int):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_too_small_is_said_before_decoding(tmp_path):
    with small_disk(tmp_path / "disk", 100) as disk:
        with pytest.raises(UserError, match=r"need 1,\d{3},\d{3} bytes in .*free") as error:
            open_cache(Noise(sizes=(4000, 1000), pixels=10), disk, show=False)
        assert "\n" not in str(error.value) and str(disk) in str(error.value)
        assert not list(disk.rglob("*.npy")) and not list(disk.rglob("*.partial"))


def test_a_file_that_may_not_grow_is_said_and_nothing_is_left(tmp_path):
    with small_files(100), pytest.raises(UserError, match=r"cache_dir"):
        open_cache(Noise(sizes=(4000, 1000), pixels=10), tmp_path, show=False)
    assert not list(tmp_path.rglob("*.npy")) and not list(tmp_path.rglob("*.partial"))
    open_cache(Noise(), tmp_path, show=False)


def test_digests_of_images_are_in_the_manifest(tmp_path):
    open_cache(Noise(), tmp_path, show=False)
    (meta,) = tmp_path.rglob("meta.json")
    assert "train-digests.npy" in json.loads(meta.read_text())["body"]["files"]
    assert len(np.unique(np.load(meta.with_name("train-digests.npy")))) == 40
