"""Scores of maps against masks are those of a loop over pixels, and tell a map of the object from one of the ground."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import mhprobe
from drawn import assert_nothing_is_clipped
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.lab.papers.panels.maps import segmentation
from mhprobe.maps.rollout import Rollout
from mhprobe.maps.segmentation import average_precision, overlap, scores
from mhprobe.report.result import Sample
from models import images_for, labels_for, tiny_swin, tiny_vit
from oracles import maps as oracle


def discs(count, side):
    """(count, side, side) objects 1, a block in a corner that differs from image to image, and a pixel of object 2."""
    objects = torch.zeros(count, side, side, dtype=torch.long)
    for number, image in enumerate(objects):
        corner = [slice(0, side // 2), slice(side // 2, side)]
        image[corner[number % 2], corner[number // 2 % 2]] = 1
        image[side // 2, side // 2] = 2
    return objects


def test_scores_are_those_of_a_loop_over_pixels():
    torch.manual_seed(0)
    maps, mask = torch.rand(5, 3, 4, dtype=torch.float64), torch.rand(5, 6, 8) < 0.3
    maps[1] = maps[1].round()  # ties
    maps[2] = 0.5  # flat: nothing is hot
    found = scores(overlap(maps, mask).mean(0))
    expected = oracle.segmentation(
        [image.tolist() for image in maps], [image.tolist() for image in mask]
    )
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


def test_precision_of_a_perfect_a_flat_and_a_wrong_order():
    shown = torch.tensor([[True, True, False, False]]).expand(3, -1)
    values = torch.tensor([[4.0, 3, 2, 1], [1, 1, 1, 1], [1, 2, 3, 4]])
    assert average_precision(values, shown).tolist() == pytest.approx([1, 0.5, (1 / 3 + 2 / 4) / 2])


def material(objects, model=None):
    count, side = len(objects), objects.shape[-1]
    images = torch.rand(count, 3, side, side) if model is None else images_for(model, count)
    valid = torch.ones(count, dtype=torch.bool)
    valid[-1] = False  # a padded one does not count
    batch = Batch(images, labels_for(count), torch.arange(count), valid, objects=objects)
    halves = [
        batch._replace(
            **{f: getattr(batch, f)[s] for f in ("images", "labels", "index", "valid", "objects")}
        )
        for s in (slice(0, 3), slice(3, None))
    ]
    return SimpleNamespace(
        backbone=model, walk=lambda images: lambda: halves, of=Sample, seed=0, first=False
    )


def by_map(result):
    table = result["scores"].table
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {(row["map"], row["score"]): row for row in rows}


def test_a_map_of_the_object_is_ahead_of_the_centre_and_its_opposite_behind():
    objects = discs(24, 8)
    objects[5] = 0  # nothing to find
    given = material(objects)

    def truth(model, images, labels):
        where = {
            image.sum().item(): shown for image, shown in zip(given_images, objects, strict=True)
        }
        return {"a": torch.stack([(where[image.sum().item()] == 1).double() for image in images])}

    def opposite(model, images, labels):
        return {"a": -truth(model, images, labels)["a"]}

    given_images = torch.cat([batch.images for batch in given.walk(None)()])
    result = segmentation(given, {"truth": truth, "opposite": opposite}, images=24, number=1)
    rows = by_map(result)
    assert rows["truth", "mean IoU"]["images"] == 22
    for score in ("pixel accuracy", "mean IoU", "average precision"):
        good, centre, bad = (rows[name, score] for name in ("truth", "centre", "opposite"))
        assert good["value"] == good["low"] == good["high"] == 1
        assert (
            good["over_centre"] == pytest.approx(1 - centre["value"])
            and good["over_centre_low"] > 0
        )
        assert bad["value"] < 0.26 and centre["over_centre"] == 0
        assert centre["low"] <= centre["value"] <= centre["high"]
    assert (
        by_map(segmentation(given, {"truth": truth}, images=24))["truth", "pixel accuracy"]["value"]
        < 1
    )  # object 2
    assert_nothing_is_clipped(result["scores"].figure)


def test_a_map_is_compared_with_the_centre_image_by_image():
    """The centre map again, as a map of its own: each score has an interval, the difference has none."""
    given = material(discs(24, 8))

    def again(model, images, labels):
        place = torch.arange(8, dtype=torch.float64) - 3.5
        return {"a": -torch.hypot(place[:, None] / 8, place / 8).expand(len(images), -1, -1)}

    rows = by_map(segmentation(given, {"again": again}, images=24))
    for score in ("pixel accuracy", "mean IoU", "average precision"):
        row = rows["again", score]
        assert (
            row["value"] == pytest.approx(rows["centre", score]["value"])
            and row["high"] > row["low"]
        )
        assert row["over_centre_low"] == row["over_centre_high"] == row["over_centre"] == 0


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_rollouts_of_a_network_are_scored(build):
    model = build()
    mhprobe.attach(model)
    given = material(discs(6, images_for(model, 1).shape[-1]), model.eval())
    rows = by_map(segmentation(given, {"rollout": Rollout()}, images=6, number=1))
    assert {name for name, _ in rows} == {"rollout", "centre", "random"}
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in rows.values())


def test_data_without_masks_are_refused():
    given = material(discs(6, 8))
    bare = [batch._replace(objects=None) for batch in given.walk(None)()]
    given.walk = lambda images: lambda: bare
    with pytest.raises(UserError, match=r"no object masks.*data=scenes"):
        segmentation(given, {}, images=6)
    given = material(discs(6, 8))
    with pytest.raises(UserError, match="shows object 7"):
        segmentation(
            given, {"flat": lambda model, images, labels: {"a": images[:, 0]}}, images=6, number=7
        )
