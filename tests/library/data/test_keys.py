"""Dicts with two known keys: taken if both hold the same, refused if they differ."""

from __future__ import annotations

import pytest
import torch

from mhprobe.data.augment import grey, in_colours, normalise
from mhprobe.data.batch import images_and_labels
from mhprobe.errors import UserError

IMAGES, LABELS = torch.randn(4, 3, 8, 8), torch.arange(4)


@pytest.mark.parametrize("keys", [("label", "target"), ("labels", "y"), ("cls", "targets")])
def test_labels_under_two_keys_are_taken_only_if_they_are_the_same(keys):
    one, other = keys
    same = {"image": IMAGES, one: LABELS, other: LABELS.clone()}
    assert torch.equal(images_and_labels(same)[1], LABELS)
    differ = {**same, other: LABELS + 1}
    with pytest.raises(UserError, match=r"labels: expected one key with them.*which differ"):
        images_and_labels(differ)
    for key in keys:
        assert torch.equal(images_and_labels(differ, label=key)[1], differ[key])


def test_images_under_two_keys_are_taken_only_if_they_are_the_same():
    raw = {"image": IMAGES, "pixel_values": IMAGES / 2, "label": LABELS}
    with pytest.raises(UserError, match=r"images: .*'image' and 'pixel_values', which differ"):
        images_and_labels(raw)
    assert images_and_labels({**raw, "pixel_values": IMAGES})[0] is not None
    # what is no tensor, as a picture of Pillow's, is no rival
    assert images_and_labels({**raw, "image": ["a picture"] * 4})[0] is raw["pixel_values"]


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_pixels_of_other_channels_than_the_mean_are_refused(channels):
    images = torch.zeros(2, channels, 8, 8, dtype=torch.uint8)
    with pytest.raises(UserError, match=f"images: expected 3 channels.*got {channels}"):
        normalise(images, (8, 8), (0.5,) * 3, (0.5,) * 3)
    assert normalise(images, (8, 8), (0.5,) * channels, (0.5,) * channels).shape == images.shape


def test_pictures_show_the_first_three_channels_or_the_mean():
    images = torch.arange(13.0).view(1, 13, 1, 1).expand(1, 13, 2, 2)
    shown, words = in_colours(images)
    assert shown[0, :, 0, 0].tolist() == [0, 1, 2] and "channels 1 to 3 of 13" in words
    shown, words = in_colours(images[:, :2])
    assert shown[0, :, 0, 0].tolist() == [0.5] * 3 and "mean of 2 channels" in words
    assert in_colours(images[:, :3])[1] == "image"
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert grey(red).item() == 76  # .299 of 255
