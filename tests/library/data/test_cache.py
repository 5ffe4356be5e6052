"""The cache is what the source said, is built once, survives damage and two builders, and is never half-written."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing

import numpy as np
import pytest

from data_sets import Noise
from mhprobe.data import cache as cache_module
from mhprobe.data.cache import open_cache
from mhprobe.errors import UserError


def open_noise(cache_dir, source=None, verify=True):
    return open_cache(source or Noise(), cache_dir, verify=verify, show=False)


def the_folder(cache_dir):
    (folder,) = [path for path in (cache_dir / "images").iterdir() if path.is_dir()]
    return folder


def assert_right(cache, source=None):
    contents = (source or Noise()).scan()
    assert cache.class_names == contents.class_names and cache.size == contents.size
    for split, position, image in contents.images():
        np.testing.assert_array_equal(
            cache.splits[split].images[position], image.transpose(2, 0, 1)
        )
    for split, labels in contents.labels.items():
        np.testing.assert_array_equal(cache.splits[split].labels, labels)


def test_images_come_back_as_decoded_and_only_once(tmp_path):
    source = Noise()
    assert_right(open_noise(tmp_path, source))
    again = open_noise(tmp_path, source)
    assert source.scans == 1
    assert_right(again)
    assert isinstance(again.splits["train"].images, np.memmap)


def test_another_key_is_another_cache_and_the_checksum_is_of_the_contents(tmp_path):
    first = open_noise(tmp_path / "a")
    assert open_noise(tmp_path / "b").checksum == first.checksum
    other = Noise(version=1)
    assert open_noise(tmp_path / "a", other).checksum != first.checksum
    assert_right(open_noise(tmp_path / "a"))
    assert_right(open_noise(tmp_path / "a", other), other)


def test_another_decoder_is_another_cache(tmp_path, monkeypatch):
    """It may round otherwise, and the run of a fresh machine has its pixels."""
    source = Noise()
    for decoder, scans in (("pillow 1.0", 1), ("pillow 2.0", 2), ("pillow 1.0", 2)):
        monkeypatch.setattr(cache_module, "DECODER", decoder)
        open_noise(tmp_path, source)
        assert source.scans == scans


def cut(folder):
    path = folder / "train-images.npy"
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_bit(folder):
    path = folder / "test-images.npy"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def lose_the_labels(folder):
    (folder / "train-labels.npy").unlink()


def cut_the_meta(folder):
    path = folder / "meta.json"
    path.write_text(path.read_text()[:-30])


def edit_the_meta(folder):
    meta = json.loads((folder / "meta.json").read_text())
    meta["body"]["class_names"].reverse()
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("damage", [cut, flip_a_bit, lose_the_labels, cut_the_meta, edit_the_meta])
def test_a_damaged_cache_is_built_again(tmp_path, damage):
    open_noise(tmp_path)
    damage(the_folder(tmp_path))
    source = Noise()
    assert_right(open_noise(tmp_path, source))
    assert source.scans == 1
    assert sorted(p.name for p in the_folder(tmp_path).iterdir()) == sorted(
        [
            "meta.json",
            *(
                f"{s}-{what}.npy"
                for s in ("train", "test")
                for what in ("images", "labels", "digests")
            ),
        ]
    )


@pytest.mark.parametrize("damage", [cut, lose_the_labels, cut_the_meta])
def test_sizes_alone_are_checked_without_verify(tmp_path, damage):
    open_noise(tmp_path)
    damage(the_folder(tmp_path))
    assert_right(open_noise(tmp_path, verify=False))


def test_a_failed_build_leaves_nothing_and_the_next_one_works(tmp_path, monkeypatch):
    class Broken(Noise):
        def scan(self):
            contents = super().scan()

            def images():
                for number, item in enumerate(contents.images()):
                    if number == 30:
                        raise UserError("a damaged image")
                    yield item

            return type(contents)(contents.class_names, contents.labels, contents.size, images)

    with pytest.raises(UserError, match="a damaged image"):
        open_noise(tmp_path, Broken())
    assert [p.name for p in (tmp_path / "images").iterdir() if p.is_dir()] == []
    assert_right(open_noise(tmp_path))


def test_the_remains_of_a_killed_build_are_cleared(tmp_path, monkeypatch):
    """kill -9 before the rename: the partial folder stays, is never taken for a cache, and goes with the next build."""
    with monkeypatch.context() as patch:
        patch.setattr(
            cache_module.os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        patch.setattr(cache_module.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            open_noise(tmp_path)
    assert the_folder(tmp_path).name.endswith(".partial")
    assert_right(open_noise(tmp_path))
    assert not the_folder(tmp_path).name.endswith(".partial")


def test_images_that_vanish_while_decoding_are_noticed(tmp_path):
    class Shrinking(Noise):
        def scan(self):
            contents = super().scan()
            return type(contents)(
                contents.class_names,
                contents.labels,
                contents.size,
                lambda: list(contents.images())[:-1],
            )

    with pytest.raises(UserError, match="61 images were listed, but 60 read"):
        open_noise(tmp_path, Shrinking())


def _open_in_child(cache_dir):
    source = Noise((3000, 100))
    cache = open_cache(source, cache_dir, show=False)
    return source.scans, cache.checksum


def test_of_two_processes_at_once_one_builds_and_both_read(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        results = list(pool.map(_open_in_child, [tmp_path] * 2))
    assert sorted(scans for scans, _ in results) == [0, 1]
    assert len({checksum for _, checksum in results}) == 1


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        UserError, match=r"cache_dir: .* cannot be written to .*file/images.* cache_dir=<folder>"
    ):
        open_noise(tmp_path / "file")


@pytest.mark.parametrize("sizes", [(40, 21), (256, 256), (500, 113)])
def test_progress_counts_every_image(tmp_path, monkeypatch, sizes):
    moved = []

    @contextlib.contextmanager
    def counting(description, total, show):
        yield moved.append

    monkeypatch.setattr(cache_module, "progress", counting)
    open_noise(tmp_path, Noise(sizes))
    assert sum(moved) == sum(sizes) and max(moved) <= cache_module.AT_ONCE
