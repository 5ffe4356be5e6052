"""A disk that is full, read-only or gone is one line at any write; what was not asked to be kept costs a warning."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import forks
import runs
from data_sets import Noise
from mhprobe.data.cache import open_cache
from mhprobe.errors import UserError
from mhprobe.framework.run import jobs
from mhprobe.io import files
from mhprobe.masking.base import Scores
from mhprobe.masking.parts.cache import MaskCache
from mhprobe.weights.checkpoint import load_checkpoint
from runs import Command


@contextlib.contextmanager
def disk(folder: Path, kilobytes: int, *options: str):
    """A file system of that size; read-only and the like by ``options``."""
    folder.mkdir(parents=True)
    told = ",".join([f"size={kilobytes}k", *options])
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", told, "none", str(folder)], capture_output=True
    ).returncode:
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
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (
        tmp_path / "a"
    ).read_text() == "before"


# a whole command: every file that it creates, everything that it writes

TASKS = {
    "train": ("trainer.max_epochs=1", "masking=none", "measure=[gate_importance]"),
    "probe": ("measure=[gate_importance,svcca]",),
    "mask": ("search=exact", "masking.steps=2"),
    "prune": ("prune=order", "prune/order=fisher", "prune.remove=2"),
}
LOGS = ("logs", "config")  # Lightning's and Hydra's own, of which the last line may be lost
PAGE = ("run.json", "report.html", ".attention.")  # a warning says how to make them later


def overrides(task: str, trained: runs.Result, place: Path) -> list[str]:
    weights = [] if task == "train" else [f"weights={trained.folder / 'model.safetensors'}"]
    where = [f"out={place}/out", f"cache_dir={place}/cache", f"hydra.run.dir={place}/out/run"]
    small = [*runs.TINY, "data.limit_train=48", "trainer.precision=32-true"]
    return runs.known(task, [*small, *TASKS[task], *weights, *where])


def litter(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith((".tmp", ".partial")) or ".partial/" in name]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc to know which file is written"
)
@pytest.mark.parametrize("task", TASKS)
def test_a_disk_that_is_full_at_any_write_ends_a_command_in_one_line(task, trained, tmp_path):
    place = tmp_path / "disk"
    told = (task, overrides(task, trained, place), str(place))
    done = forks.ask("filling.obey", tmp_path, runs.environment(), *told)
    assert done.code == 0, done.err  # nobody was refused
    moments = [json.loads(line) for line in done.out.splitlines()]
    assert len(moments) > 30 and {moment["kind"] for moment in moments} == {"files", "bytes"}
    for moment in moments:
        about = (moment["kind"], moment["path"], moment["err"])
        lines = [
            line for line in moment["err"].splitlines() if "is not kept" not in line
        ]  # of a search, see below
        assert lines and all("No space left on device" in line for line in lines), about
        if any(name in moment["path"] for name in PAGE):  # the maps, the page
            assert moment["code"] == 0 and "Try again with" in lines[-1] and len(lines) <= 2, about
        else:
            assert len(lines) == 1, about
            assert moment["code"] == 2 and lines[0].startswith("mhprobe: "), about
            assert "bytes" in lines[0] and any(
                word in lines[0] for word in ("out=", "cache_dir=", "ckpt_path=")
            ), about
        assert not litter(moment["left"]), about
        whole = [name for name in moment["changed"] + moment["lost"] if not litter([name])]
        assert not [
            name for name in whole if not any(f"/{part}/" in name for part in (*LOGS, "orders"))
        ], about


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_training_on_a_small_disk_ends_in_one_line_and_leaves_whole_files(trained, tmp_path):
    """What the fork above stands in for: a file system that is really full, at two sizes of it."""
    shares = (0.2, 0.35)  # the page, a good half of it, costs a warning only
    with contextlib.ExitStack() as mounted:
        ample = mounted.enter_context(disk(tmp_path / "ample", 100_000))
        whole = runs.answers([Command("train", overrides("train", trained, ample))], tmp_path)
        assert whole[0].code == 0, whole[0].err
        needed = shutil.disk_usage(ample).used // 1024
        small = [
            mounted.enter_context(disk(tmp_path / str(share), int(4 + share * needed)))
            for share in shares
        ]
        ends = runs.answers(
            [Command("train", overrides("train", trained, each)) for each in small], tmp_path
        )
        for place, end in zip(small, ends, strict=True):
            assert end.code == 2 and "No space left on device" in end.answer, end.err
            left = [path for path in place.rglob("*") if path.is_file()]
            assert not litter([str(path) for path in left])
            for path in left:
                if path.suffix == ".ckpt":
                    load_checkpoint(path)
                if path.suffix == ".json":
                    json.loads(path.read_text())


# what is kept for later only


def scores(images: int = 9) -> Scores:
    return Scores(
        torch.ones(2, images, dtype=torch.bool), torch.zeros(2, images, dtype=torch.float64)
    )


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
