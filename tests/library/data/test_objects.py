"""Object masks travel with their images, from the source to the batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from data_sets import Noise, write_pets
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.cache import open_cache
from mhprobe.data.pets import Pets
from mhprobe.data.scenes import SHAPES, Scenes
from mhprobe.errors import UserError


def test_scenes_are_the_same_every_time_and_differ_from_each_other():
    first, again = (
        list(itertools.islice(Scenes(train=8, test=8).scan().images(), 16)) for _ in range(2)
    )
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a[2], b[2])
    assert len({image.tobytes() for _, _, image, _ in first}) == 16


def test_a_mask_covers_exactly_the_pixels_that_are_not_ground():
    for _, _, image, mask in Scenes(train=8, test=8).scan().images():
        ground = np.median(image[mask == 0].reshape(-1, 3), 0)
        far = np.abs(image.astype(float) - ground).max(-1) > 48  # 4 deviations of the noise
        assert (far == (mask > 0)).mean() > 0.97


def test_the_label_is_the_shape_of_the_largest_object():
    contents = Scenes(train=40, test=8).scan()
    filled = {shape: [] for shape in SHAPES}
    for split, i, _, mask in contents.images():
        areas = np.bincount(mask.flatten(), minlength=4)[1:]
        assert areas.argmax() == 0
        rows, columns = np.nonzero(mask == 1)
        box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        filled[SHAPES[contents.labels[split][i]]].append(areas[0] / box)
    mean = {shape: np.mean(shares) for shape, shares in filled.items()}
    # shares of the bounding box: 1, pi / 4, about a half; a ring has a hole
    assert mean["square"] > 0.95 > mean["disc"] > 0.7 > mean["ring"] and mean["triangle"] < 0.7


def test_masks_reach_the_evaluation_batch_resized_without_new_numbers(tmp_path):
    data = ImageData(Scenes(train=16, test=8), batch_size=4, cache_dir=tmp_path, val_fraction=0.5)
    data.spec = InputSpec((48, 48))
    masks = [mask for split, _, _, mask in data.source.scan().images() if split == "test"]
    seen = torch.cat([batch.objects for batch in data.batches("test")])
    assert seen.dtype == torch.long and seen.shape == (8, 48, 48)
    for mask, objects in zip(masks, seen, strict=True):
        assert set(objects.unique().tolist()) <= set(np.unique(mask).tolist())
        np.testing.assert_array_equal(objects[::3, ::3], mask[::2, ::2])
    batch = next(iter(data.train_dataloader()))
    assert data.transform(batch, train=True).objects is None  # the crop would leave them behind


def test_a_source_without_masks_has_none(tmp_path):
    assert open_cache(Noise(), tmp_path, show=False).splits["test"].objects is None
    data = ImageData(Noise(), batch_size=4, cache_dir=tmp_path)
    assert next(data.batches("test")).objects is None


def test_pets_read_their_trimaps(tmp_path):
    source = Pets(write_pets(tmp_path), stored_size=15)
    cache = open_cache(source, tmp_path / "cache", show=False)
    assert cache.class_names == ("Abyssinian", "Beagle")
    assert cache.splits["train"].labels.tolist() == [0, 1]
    # columns 5 to 34 of 40 at half size: the animal's 10 to 29 become 2.5 to 12, its border is
    # ground
    assert (
        cache.splits["test"].objects[0, 0].tolist() == [0] * 3 + [1] * 9 + [0] * 3
        or cache.splits["test"].objects[0, 0].tolist() == [0] * 2 + [1] * 10 + [0] * 3
    )
    assert cache.splits["train"].images[1].min() >= 45


def test_pets_that_are_not_there_or_damaged_are_one_line(tmp_path):
    with pytest.raises(UserError, match=r"Oxford-IIIT Pet is not in .*data=scenes") as refused:
        Pets(tmp_path / "nothing").scan()
    assert str(tmp_path / "nothing" / "oxford-iiit-pet") in str(refused.value)
    assert "fetched" not in str(refused.value)  # nobody asked for a download
    root = write_pets(tmp_path)
    (root / "oxford-iiit-pet" / "images" / "beagle_1.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"beagle_1\.jpg or its trimap cannot be read"):
        open_cache(Pets(root), tmp_path / "cache", show=False)


def test_too_small_scenes_are_refused():
    with pytest.raises(UserError, match="scenes have size >= 16"):
        Scenes(size=8)
