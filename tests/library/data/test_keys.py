"""Dicts with two known keys: taken if both hold the same, refused if they differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhprobe.data.augment import grey, in_colours, normalise
from mhprobe.data.batch import images_and_labels
from mhprobe.errors import UserError
from mhprobe.recording.checks import check_labels

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


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (LABELS, "a class"),
        (LABELS.to(torch.uint16), "a class"),
        (LABELS.double(), "a class"),
        (LABELS[:, None].float(), "a class"),
        (torch.eye(4), "a class"),
        (torch.tensor([[1, 1, 0]] * 4), "a class"),
        (["ant", "bee", "ant", "cat"], "a text"),
        (np.array(["ant", "bee", "ant", "cat"]), "a text"),
    ],
)
def test_labels_of_any_form_under_an_unknown_key_are_not_left_out_without_a_word(labels, what):
    item = {"image": IMAGES, "breed": labels}
    with pytest.raises(UserError, match=f"got {what} per image under 'breed'"):
        images_and_labels(item)
    assert images_and_labels({"image": IMAGES})[1] is None


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("__url__", ["shard-1.tar"] * 4),
        ("path", ["ant/1.png", "ant/2.png", "bee/1.png", "bee/1.png"]),
        ("caption", ["an ant", "a bee", "a cat", "a dog"]),
        ("attention_mask", torch.ones(4, 5, dtype=torch.int64)),
        ("embedding", torch.randn(4, 5)),
        ("weight", torch.ones(4)),
    ],
)
def test_what_is_no_class_stands_beside_images(key, part):
    """Negative control of the above."""
    images, labels = images_and_labels({"image": IMAGES, key: part})
    assert images is IMAGES and labels is None


@pytest.mark.parametrize("texts", [["c1", "c0"] * 2, ("c1",) * 4, np.array(["c1", "c0"] * 2)])
def test_labels_that_are_texts_are_called_that(texts):
    for item in ((IMAGES, texts), {"image": IMAGES, "label": texts}):
        with pytest.raises(
            UserError, match=r"labels: .*got texts, e\.g\. 'c1'\. Give batch=.*names"
        ) as e:
            images_and_labels(item)
        how = "item[1]" if isinstance(item, tuple) else "item['label']"
        assert how in str(e.value)


@pytest.mark.parametrize("item", [np.int64(3), 3, None, "a text"], ids=str)
def test_an_item_that_holds_nothing_is_one_line(item):
    """Of numpy's numbers, which a loader that is an array gives, once a TypeError came."""
    with pytest.raises(UserError, match="expected batches"):
        images_and_labels(item)


def test_images_of_several_sizes_are_called_that():
    images = [torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)]
    with pytest.raises(UserError, match=r"several sizes, e\.g\. \(3, 8, 8\) and \(3, 9, 8\)"):
        images_and_labels((images, LABELS[:2]))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, -1], "below 0 usually marks an image without a class"),
        ([0, -100], "below 0 usually marks an image without a class"),
        ([1, 2], r"counted from 1\? Then give labels - 1"),
        ([0, 2], "the right data set for this head"),  # the control: 0 is there
    ],
)
def test_classes_that_a_network_has_not_are_told_why(labels, says):
    with pytest.raises(UserError, match=f"labels: expected 0 to 1, .*{says}"):
        check_labels(torch.tensor(labels), torch.zeros(2, 2))


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


def test_one_image_without_a_batch_and_images_behind_labels_are_called_that():
    images, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2).long()
    with pytest.raises(UserError, match=r"images: .*one image without a batch; give") as error:
        images_and_labels((images[0], labels[0]))
    assert "batch=lambda item: (item[0][None], item[1][None])" in str(error.value)
    with pytest.raises(UserError, match=r"images: .*such a tensor for labels; give") as error:
        images_and_labels((labels, images))
    assert "batch=lambda item: (item[1], item[0])" in str(error.value)


def test_numbers_that_count_up_before_other_numbers_are_no_labels():
    """(images, index, classes): the index was taken for the classes."""
    index, classes = torch.arange(8, 12), torch.tensor([2, 0, 1, 2])
    with pytest.raises(UserError, match=r"counts up, \[8, 9, 10\] .*item\[2\]"):
        images_and_labels((IMAGES, index, classes))
    # negative controls: classes and their index; classes that happen to count up, and a mask
    assert torch.equal(images_and_labels((IMAGES, classes, index))[1], classes)
    assert torch.equal(images_and_labels((IMAGES, index, torch.rand(4)))[1], index)
    assert torch.equal(images_and_labels((IMAGES, index))[1], index)


def test_labels_without_numbers_of_their_own_are_refused():
    one_hot = torch.nn.functional.one_hot(LABELS).float()
    for labels, says in (
        (one_hot.to_sparse(), r"sparse tensor.*argmax"),
        (LABELS.to("meta"), "hold no numbers"),
        (torch.rand(4, 1), "a column of numbers that are no classes; choose one class"),
    ):
        with pytest.raises(UserError, match=says):
            images_and_labels((IMAGES, labels))
