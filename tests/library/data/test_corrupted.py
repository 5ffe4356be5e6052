"""Damaged images: only the test split, the same for ever, worse with severity."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from data_sets import Noise
from mhprobe.data.base import ImageData
from mhprobe.data.corrupted import KINDS, Corrupted
from mhprobe.data.scenes import Scenes
from mhprobe.errors import UserError


def images(source, split: str) -> np.ndarray:
    return np.stack([image for name, _, image in source.scan().images() if name == split])


def test_only_test_images_are_damaged_and_all_of_them():
    plain, damaged = Noise(), Corrupted(Noise(), severity=5)
    assert np.array_equal(images(plain, "train"), images(damaged, "train"))
    differs = (images(plain, "test") != images(damaged, "test")).any((1, 2, 3))
    assert differs.all()
    assert (
        damaged.scan().class_names == plain.scan().class_names and damaged.name == "noise_corrupted"
    )


def test_an_images_damage_depends_on_the_seed_and_its_position_alone():
    source = Corrupted(Noise(), kinds=["noise"])
    image = images(Noise(), "test")[3]
    np.random.seed(0)
    first = source.damaged(image, 3)
    assert np.array_equal(source.damaged(image, 3), first)
    assert not np.array_equal(source.damaged(image, 4), first)
    assert not np.array_equal(Corrupted(Noise(), kinds=["noise"], seed=1).damaged(image, 3), first)


def test_damage_leaves_torchs_generator_where_it_was():
    import torch

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    Corrupted(Noise(), kinds=["noise"]).damaged(images(Noise(), "test")[0], 0)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_does_more_at_a_higher_severity(kind):
    # a smooth picture: what is noise already cannot be told from noise
    ramp = np.linspace(30, 220, 32)
    picture = np.stack([np.add.outer(ramp, ramp * s) / (1 + s) for s in (0.2, 1.0, 3.0)], -1)
    picture[8:20, 8:20] = (250, 20, 90)
    picture = picture.astype(np.uint8)
    damage = [
        np.abs(
            Corrupted(Noise(), kinds=[kind], severity=s).damaged(picture, 0).astype(float) - picture
        ).mean()
        for s in range(1, 6)
    ]
    assert damage[0] > 0 and all(less < more for less, more in itertools.pairwise(damage)), damage


@pytest.mark.parametrize(("severity", "left"), [(1, 0.75), (3, 0.4), (5, 0.15)])
def test_the_share_of_contrast_that_is_left_is_that_of_its_severity(severity, left):
    ramp = np.linspace(30, 220, 32)
    grey = np.repeat(np.add.outer(ramp, ramp)[..., None] / 2, 3, 2).astype(np.uint8)
    damaged = Corrupted(Noise(), kinds=["contrast"], severity=severity).damaged(grey, 0)
    assert damaged.std() / grey.std() == pytest.approx(left, abs=0.01)


def test_all_kinds_occur_and_the_drawn_ones_only():
    source = Corrupted(Noise())
    kinds = [source.kind_of(position) for position in range(400)]
    assert all(
        60 < kinds.count(kind) < 140 for kind in KINDS
    )  # 100 each, within 4.6 standard deviations
    assert {Corrupted(Noise(), kinds=["blur", "jpeg"]).kind_of(i) for i in range(50)} == {
        "blur",
        "jpeg",
    }


def test_another_damage_is_another_cache(tmp_path):
    keys = [
        Corrupted(Noise(), **options).key()
        for options in ({}, {"severity": 2}, {"seed": 1}, {"kinds": ["blur"]})
    ]
    assert len({str(key) for key in keys}) == 4
    data = ImageData(Corrupted(Noise()), batch_size=4, cache_dir=tmp_path)
    data.prepare_data()
    assert data.sizes["test"] == 21


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kinds": ["fog"]}, "fog"), ({"kinds": []}, "blur"), ({"severity": 6}, "1 .slight. to 5")],
)
def test_wrong_options_are_refused_in_one_line(options, words):
    with pytest.raises(UserError, match=words) as error:
        Corrupted(Noise(), **options)
    assert "\n" not in str(error.value)


def test_damage_leaves_object_masks_where_they_are(tmp_path):
    plain, damaged = (
        ImageData(source, 4, cache_dir=tmp_path) for source in (scenes(), Corrupted(scenes()))
    )
    before, after = (data.splits["test"].cached for data in (plain, damaged))
    assert before.objects.any() and np.array_equal(before.objects, after.objects)
    assert not np.array_equal(before.images, after.images)


def scenes() -> Scenes:
    return Scenes(train=20, test=8)
