"""A limit reaches the source: as many images are decoded as are read, and they are the same images as before."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
import torchvision

from data_sets import (
    Noise,
    class_files,
    encoded,
    write_flowers,
    write_folder,
    write_pets,
    write_tar,
    write_zip,
)
from mhprobe.data import cifar10, corrupted, digits, flowers, images, pets, photos, scenes
from mhprobe.data import source as source_module
from mhprobe.data.base import ImageData
from mhprobe.data.cache import open_cache
from mhprobe.errors import UserError
from mhprobe.pruning.promised import check_unseen
from mhprobe.pruning.rounds import Selection

FILES = class_files(train=20, test=8, width=16, height=16)


def folders(form: str):
    def make(tmp_path):
        write = {"folder": write_folder, "tar": write_tar, "zip": write_zip}[form]
        name = {"folder": "set", "tar": "set.tar.gz", "zip": "set.zip"}[form]
        return images.ImageFolder(write(tmp_path / name, FILES), 16)

    return make


def cifar_folders(tmp_path):
    files = class_files(train=20, test=8)
    return cifar10.Cifar10(write_tar(tmp_path / "set.tar.gz", files))


def cifar_batches(form: str):
    """CIFAR-10's six files, of 20 images each."""

    def make(tmp_path):
        rng = np.random.default_rng(0)
        for names in cifar10.BATCHES.values():
            for name in names:
                pixels = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
                labels = np.arange(20, dtype=np.uint8) % 10
                if form == "pickled":
                    content = {b"data": pixels, b"labels": labels.tolist()}
                    (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
                else:
                    rows = np.concatenate([labels[:, None], pixels], axis=1)
                    (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
        return cifar10.Cifar10(tmp_path)

    return make


def damaged_noise(tmp_path):
    return corrupted.Corrupted(Noise((40, 16), classes=2), kinds=["contrast"])


SOURCES = {
    **{form: folders(form) for form in ("folder", "tar", "zip")},
    "cifar_folders": cifar_folders,
    **{f"cifar_{form}": cifar_batches(form) for form in ("pickled", "binary")},
    "digits": lambda _: digits.Digits(),
    "scenes": lambda _: scenes.Scenes(train=40, test=16),
    "pets": lambda tmp_path: pets.Pets(write_pets(tmp_path / "pets", each=10), 16),
    "flowers": lambda tmp_path: flowers.Flowers(write_flowers(tmp_path / "flowers", each=10), 16),
    "corrupted": damaged_noise,
}


@pytest.fixture
def decoded(monkeypatch) -> Counter[str]:
    """How many images of each split a source hands on, and how many files it decodes."""
    counts: Counter[str] = Counter()

    def counted(name, of):
        def call(*arguments, **options):
            counts[name] += 1
            return of(*arguments, **options)

        return call

    walk = source_module.Contents.walk

    def counting(contents, wanted=None):
        for split, *parts in walk(contents, wanted):
            counts[split] += 1
            yield split, *parts

    monkeypatch.setattr(source_module.Contents, "walk", counting)
    monkeypatch.setattr(images, "decode", counted("files", images.decode))
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)
    for module in (pets, flowers):
        monkeypatch.setattr(module, "square", counted("files", module.square))
    monkeypatch.setattr(corrupted, "_damaged", counted("files", corrupted._damaged))
    monkeypatch.setattr(scenes.Scenes, "_scene", counted("files", scenes.Scenes._scene))
    return counts


def data_of(name, tmp_path, **options) -> ImageData:
    given = {"val_fraction": 0.2, "batch_size": 4, "cache_dir": tmp_path / "cache", **options}
    (tmp_path / "files").mkdir(exist_ok=True)
    source = SOURCES[name]
    made = tmp_path / "made"
    if not made.exists():
        made.write_bytes(pickle.dumps(source(tmp_path / "files")))
    return ImageData(pickle.loads(made.read_bytes()), **given)


def read(data: ImageData, *splits: str) -> dict[str, list[np.ndarray]]:
    """The stored images of whole splits."""
    return {
        split: [data.stored(split, [i]).images.numpy() for i in range(data.sizes[split])]
        for split in splits
    }


@pytest.mark.parametrize("name", SOURCES)
def test_only_the_images_that_a_limit_leaves_are_decoded(name, tmp_path, decoded):
    data = data_of(name, tmp_path, limit_test=4)
    data.list_images()
    assert data.sizes["test"] == 4 and not decoded
    read(data, "test")
    walks = 2 if name == "corrupted" else 1  # over another source's images
    assert decoded["test"] == 4 * walks and not decoded["train"]
    of_files = {"digits": 0, "cifar_pickled": 0, "cifar_binary": 0, "pets": 8}.get(name, 4)
    assert decoded["files"] == of_files
    read(data, "test")
    read(data_of(name, tmp_path, limit_test=4), "test")
    assert decoded["test"] == 4 * walks  # once for all runs


@pytest.mark.parametrize("name", ["folder", "digits"])
def test_without_a_limit_all_images_of_the_split_are_decoded(name, tmp_path, decoded):
    """The control: what counts decodes sees them."""
    data = data_of(name, tmp_path)
    read(data, "test")
    assert decoded["test"] == data.sizes["test"] > 4 and not decoded["train"]


@pytest.mark.parametrize("name", SOURCES)
def test_limited_images_are_those_of_the_whole_in_pixels_labels_and_classes(
    name, tmp_path, decoded
):
    limits = {"limit_train": 10, "limit_val": 4, "limit_test": 6}
    some = data_of(name, tmp_path, **limits, calibration_fraction=0.3, seed=3)
    every = data_of(name, tmp_path, calibration_fraction=0.3, seed=3)
    whole = open_cache(every.source, tmp_path / "all", show=False)
    for split in ("train", "val", "test", "calibration"):
        of = whole.splits["test" if split == "test" else "train"]
        at = some.splits[split].positions
        assert set(at) <= set(every.splits[split].positions)
        stored = some.stored(split, range(len(at)))
        np.testing.assert_array_equal(stored.images, of.images[at])
        np.testing.assert_array_equal(stored.labels, of.labels[at])
        if of.objects is not None:
            np.testing.assert_array_equal(stored.objects, of.objects[at])
    of_class = np.bincount(some.splits["test"].labels)
    assert (of_class > 0).all() or some.num_classes > 6


def test_validation_images_of_any_seed_are_found_among_all_training_images(tmp_path, decoded):
    read(data_of("folder", tmp_path), "train")
    assert decoded["train"] == 40
    for seed in range(3):
        data = data_of("folder", tmp_path, seed=seed, limit_val=4)
        found = np.concatenate(read(data, "val")["val"])
        whole = open_cache(data.source, tmp_path / "all", show=False).splits["train"].images
        np.testing.assert_array_equal(found, whole[data.splits["val"].positions])
        decoded["train"] -= 0 if seed else 40  # of the whole, which the test itself asked for
    assert decoded["train"] == 40


def test_a_damaged_image_among_all_is_decoded_anew_for_who_reads_it(tmp_path, decoded):
    data = data_of("folder", tmp_path)
    read(data, "train")
    images_file = data.splits["train"].cached.folder / "train-images.npy"
    at = data_of("folder", tmp_path, limit_val=4).splits["val"].positions
    expected = np.array(data.splits["train"].cached.images[at])
    content = bytearray(images_file.read_bytes())
    content[-(40 - int(at[0])) * 3 * 256 + 5] ^= 1
    images_file.write_bytes(content)
    found = np.concatenate(read(data_of("folder", tmp_path, limit_val=4), "val")["val"])
    np.testing.assert_array_equal(found, expected)
    assert decoded["train"] == 40 + 4


def test_preparing_decodes_what_is_left_of_every_split(tmp_path, decoded):
    """So that a damaged test image is found before a training, not after it."""
    data = data_of("folder", tmp_path, limit_train=6, limit_val=4, limit_test=2)
    data.prepare_data()
    assert decoded == {"train": 10, "test": 2, "files": 12}
    for batch in (*data.train_dataloader(), *data.val_dataloader(), *data.test_dataloader()):
        assert batch.images.dtype == torch.uint8
    assert decoded["files"] == 12


@pytest.mark.parametrize("reads", ["the limited", "all"])
def test_a_damaged_file_is_named_by_who_reads_it_alone(tmp_path, reads):
    root = write_folder(tmp_path / "set", FILES)
    source, cache = images.ImageFolder(root, 16), tmp_path / "cache"
    some = ImageData(source, batch_size=4, cache_dir=cache, limit_test=4)
    kept = {place % 8 for place in some.splits["test"].positions if place < 8}
    lost = next(place for place in range(8) if place not in kept)
    (root / "test" / "cat" / f"{lost}.png").write_bytes(b"\x89PNG damaged")
    some = ImageData(source, batch_size=4, cache_dir=cache, limit_test=4)
    if reads == "the limited":
        assert len(read(some, "test")["test"]) == 4
        return
    with pytest.raises(UserError, match=rf"test/cat/{lost}.png is damaged"):
        read(some.limited(test=None), "test")


def test_levels_of_few_images_are_those_of_the_whole_set(tmp_path):
    """Twelve bits of 16 are twelve bits for all, whether or not the brightest image is among the few."""
    from PIL import Image

    root = write_folder(tmp_path / "set", FILES)
    for number, file in enumerate(sorted(root.rglob("*.png"))):
        top = 4000 if number == 0 else 200
        Image.fromarray(np.linspace(0, top, 256).reshape(16, 16).astype(np.uint16)).save(file)
    source = images.ImageFolder(root, 16)
    data = ImageData(source, batch_size=4, cache_dir=tmp_path / "cache", limit_test=2)
    whole = open_cache(source, tmp_path / "all", show=False).splits["test"].images
    found = np.concatenate(read(data, "test")["test"])
    np.testing.assert_array_equal(found, whole[data.splits["test"].positions])
    assert found.max() == 200 >> 4 and data.readings["levels"].taken.startswith("12 of 16 bits")


def of_photos(tmp_path, damaged=(), **limits) -> ImageData:
    files = {f"{i:02}.png": encoded(i, 16, 16) for i in range(60)}
    files |= {f"{i:02}.png": b"\x89PNG damaged" for i in damaged}
    root = tmp_path / "set"
    source = photos.Photos(root if root.exists() else write_folder(root, files), 16)
    data = ImageData(source, batch_size=4, cache_dir=tmp_path / "cache", val_fraction=0.2, **limits)
    data.list_images()
    return data


def test_of_photographs_those_that_a_limit_leaves_are_decoded(tmp_path, decoded):
    data = of_photos(tmp_path, limit_train=6, limit_val=3, limit_test=4)
    assert data.sizes == {"train": 6, "val": 3, "test": 4} and decoded["files"] == 13
    assert [len(images) for images in read(data, "train", "val", "test").values()] == [6, 3, 4]
    of_photos(tmp_path, limit_train=6, limit_val=3, limit_test=4)
    assert decoded["files"] == 13  # once for all runs
    whole = of_photos(tmp_path)  # the control
    assert whole.sizes == {"train": 24, "val": 6, "test": 30} and decoded["files"] == 73
    for split, found in read(data, "train", "val", "test").items():
        all_of = whole.splits[split]
        rows = np.searchsorted(all_of.positions, data.splits[split].positions)
        np.testing.assert_array_equal(
            np.concatenate(found), whole.stored(split, rows).images.numpy()
        )


def test_a_limit_counts_photographs_that_can_be_read(tmp_path, decoded):
    chosen = of_photos(tmp_path / "whole", limit_test=4)
    names = chosen.source.scan()
    assert len(names.labels["test"]) == 30
    for damaged in (range(0, 60, 3), range(20, 60), ()):
        place = tmp_path / str(len(damaged))
        data = of_photos(place, damaged, limit_train=3, limit_val=1, limit_test=4)
        there = 60 - len(damaged)
        assert data.sizes["train"] == 3 and data.sizes["test"] <= 4
        assert data.sizes["test"] == 4 or there == 20
        assert sum(map(len, read(data, "train", "val", "test").values())) == sum(
            data.sizes.values()
        )
        assert ("left out" in data.readings) == bool(damaged)
        pixels = [image.tobytes() for of in read(data, *data.sizes).values() for image in of]
        assert len(set(pixels)) == len(pixels)


def test_where_no_photograph_of_a_split_can_be_read_it_is_said(tmp_path):
    with pytest.raises(UserError, match="images of one split can be read"):
        of_photos(tmp_path, range(60), limit_test=4)


# what the images are called


def test_the_name_of_the_data_asks_for_test_images_alone(tmp_path, decoded):
    data = data_of("folder", tmp_path, limit_test=4)
    assert len(data.fingerprint) == len(data.files) == 16
    assert decoded["test"] == 4 and not decoded["train"]


def test_the_name_of_a_split_is_of_its_pixels_whatever_form_they_come_in(tmp_path):
    names = []
    for form in ("folder", "tar", "zip"):
        data = data_of(form, tmp_path / form) if (tmp_path / form).mkdir() is None else None
        names.append((data.fingerprint, *map(data.images_of, ("train", "val", "test"))))
    assert len(set(names)) == 1
    data = data_of("folder", tmp_path / "folder", limit_val=2)
    assert data.images_of("train") == names[0][1] and data.images_of("val") != names[0][2]


@pytest.mark.parametrize("split", ["train", "test"])
def test_other_pixels_have_another_name(tmp_path, split):
    """Also where nothing else has changed: no number of the old images is found for the new ones."""
    data = data_of("folder", tmp_path)
    before = [data.images_of("train"), data.images_of("val"), data.images_of("test"), data.files]
    place = tmp_path / "files" / "set" / split / "cat"
    for number in range(20 if split == "train" else 8):
        (place / f"{number}.png").write_bytes(encoded(1000 + number, 16, 16))
    data = data_of("folder", tmp_path)
    after = [data.images_of("train"), data.images_of("val"), data.images_of("test"), data.files]
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == ([False, False, True, False] if split == "train" else [True, True, False, False])


# images that choose a pruning


@pytest.mark.parametrize("name", SOURCES)
def test_the_images_that_choose_a_pruning_are_decoded_and_no_other(name, tmp_path, decoded):
    """Of ImageNet all 1.2 million were, for the name of 1,024."""
    data = data_of(name, tmp_path, seed=3)
    selection = Selection(data, torch.device("cpu"), "train", look_at=6, seed=3)
    looked = torch.cat([batch.images for batch in selection()])
    assert selection.name.startswith("train:") and selection.name.endswith(":6:3")
    assert decoded["train"] == 6 * (2 if name == "corrupted" else 1) and not decoded["test"]
    whole = torch.cat([batch.images for batch in data.batches("train")])
    assert torch.equal(looked, whole[selection.chosen])
    assert [batch.index.tolist() for batch in selection()] == [[0, 1, 2, 3, 4, 5]]
    again = torch.cat([batch.images for batch in selection(torch.tensor([4, 1]))])
    assert torch.equal(again, looked[[4, 1]])


def test_images_that_choose_are_decoded_once_where_all_are(tmp_path, decoded):
    data = data_of("folder", tmp_path)
    whole = torch.cat([batch.images for batch in data.batches("train")])
    for count in (6, 500):  # 500: all of them
        selection = Selection(data, torch.device("cpu"), "train", look_at=count)
        looked = torch.cat([batch.images for batch in selection()])
        assert torch.equal(looked, whole[selection.chosen])
    assert decoded["train"] == 40
    assert selection.name == f"train:{data.images_of('train')}"


def test_a_promise_knows_the_few_images_that_chose_and_decodes_no_other(tmp_path, decoded):
    options = {"seed": 3, "calibration_fraction": 0.5}
    data = data_of("folder", tmp_path, **options)
    names = [
        Selection(data, torch.device("cpu"), on, look_at=count, seed=3).name
        for on, count in (("train", 6), ("validation", 3), ("train", 500), ("test", 4))
    ]
    decoded.clear()
    check_unseen(names[:2], data_of("folder", tmp_path, **options))
    assert not decoded  # which the runs that chose have decoded
    check_unseen(names, data_of("folder", tmp_path, **options))
    other = data_of("folder", tmp_path, seed=4, calibration_fraction=0.5)
    split, digest, *some = names[0].split(":")
    forged = [f"{split}:{digest[::-1]}:{':'.join(some)}", f"{split}:{digest}:7:3", f"{split}:"]
    wrong = [f"{split}:{digest}:a:b", f"val:{digest}:6:3", f"{split}:{digest}:6", f"no:{digest}"]
    for name in (*forged, *wrong):
        with pytest.raises(UserError, match="may be among the calibration images"):
            check_unseen([name], data)
    for name in names[:2]:
        with pytest.raises(UserError, match="may be among the calibration images"):
            check_unseen([name], other)
