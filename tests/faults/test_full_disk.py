"""A disk that is full, read-only or gone is one line at any write; what was not asked to be kept costs a warning."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from data_sets import Noise
from mhprobe.data.cache import open_cache
from mhprobe.errors import UserError
from mhprobe.io import files
from mhprobe.masking.base import Scores
from mhprobe.masking.cache import MaskCache
from mhprobe.run import jobs


@contextlib.contextmanager
def disk(folder: Path, kilobytes: int, *options: str):
    """A file system of that size; read-only and the like by ``options``."""
    folder.mkdir(parents=True)
    told = ",".join([f"size={kilobytes}k", *options])
    if subprocess.run(["mount", "-t", "tmpfs", "-o", told, "none", str(folder)], capture_output=True).returncode:
        pytest.skip("this machine does not let tests mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("number", range(3))
def test_any_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, number):
    """Without a file system to mount: the n-th sync is the one that finds no room."""
    (tmp_path / "a").write_text("before")
    count = iter(range(100))
    sync = os.fsync

    def full(handle: int) -> None:
        if next(count) == number:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        files.write_all({tmp_path / name: b"after" for name in "abc"})
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "before"


# what is kept for later only


def scores(images: int = 9) -> Scores:
    return Scores(torch.ones(2, images, dtype=torch.bool), torch.zeros(2, images, dtype=torch.float64))


MASKS = torch.eye(2, 6, dtype=torch.bool)


@pytest.mark.parametrize("options", [(), ("ro",)], ids=["full", "read-only"])
def test_a_search_goes_on_where_its_answers_cannot_be_kept(tmp_path, caplog, options):
    with disk(tmp_path / "orders", 4, *options):
        cache = MaskCache(tmp_path / "orders", "key")
        for _ in range(5):
            cache.save(MASKS, None, scores(images=4000))
        known, *_ = cache.load(MASKS, None, 4000)
    assert not known.all()
    assert len(caplog.records) == 1 and "is not kept" in caplog.text


@pytest.mark.parametrize("change", ["removed", "replaced", "cut off"])
def test_a_search_notices_that_its_answers_are_gone(tmp_path, change):
    cache = MaskCache(tmp_path / "orders", "key")
    cache.save(MASKS, None, scores())
    assert cache.load(MASKS, None, 9)[0].all()
    if change == "removed":
        shutil.rmtree(tmp_path / "orders")
    elif change == "replaced":
        cache.file.rename(tmp_path / "old")
        cache.file.write_bytes((tmp_path / "old").read_bytes()[:3])
    else:
        os.truncate(cache.file, 5)
    assert not cache.load(MASKS, None, 9)[0].any()
    cache.save(MASKS, None, scores())
    again, right, _ = cache.load(MASKS, None, 9)
    assert change == "cut off" or (again.all() and right.all())


def test_images_that_were_decoded_before_need_no_disk_to_write_to(tmp_path):
    with disk(tmp_path / "disk", 4000) as folder:
        open_cache(Noise(), folder, show=False)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert open_cache(Noise(), folder, show=False).class_names
        with pytest.raises(UserError, match=r"cache_dir: .*[Rr]ead-only"):
            open_cache(Noise(sizes=(3, 3)), folder, show=False)


# a folder that goes away


def test_a_run_whose_folder_vanished_does_not_end_well(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="removed or replaced"), jobs.held(tmp_path / "run"):
        (tmp_path / "run").rmdir()
        files.write(tmp_path / "run" / "tables" / "late.csv", b"written after all")
    with jobs.held(tmp_path / "run"):  # the control
        pass


def test_decoded_images_that_vanish_under_a_run_are_said(tmp_path):
    cache = open_cache(Noise(), tmp_path, show=False)
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(UserError, match=r"cache_dir: .*no longer there"):
        _ = cache.splits["train"].images
