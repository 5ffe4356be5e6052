"""Augmentation is right pixel by pixel, and what is random about an image depends on that image alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mhprobe.data.augment import _DOWN, _FLIP, _RIGHT, Augment, normalise
from mhprobe.data.batch import Batch
from mhprobe.data.draws import draw, fold, reseed
from mhprobe.errors import UserError
from oracles import augment as oracle


def make_batch(size: int = 50, height: int = 12, width: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(
        images=torch.randint(
            0, 256, (size, 3, height, width), generator=generator, dtype=torch.uint8
        ),
        labels=torch.arange(size) % 4,
        index=torch.randperm(1000, generator=generator)[:size],
        valid=torch.ones(size, dtype=torch.bool),
    )


def take(batch: Batch, rows: list[int]) -> Batch:
    return Batch(*(part[rows] for part in batch[:4]))


def hwc(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


def test_splitmix64_gives_the_published_sequence():
    """The first outputs of the reference implementation (prng.di.unimi.it/splitmix64.c) seeded with 1234567."""
    from mhprobe.data.draws import _GOLDEN, _signed, mix

    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = 1234567
    for value in expected:
        assert int(mix(torch.tensor(state))) == _signed(value)
        state = _signed(state + _GOLDEN)


@pytest.mark.parametrize("bound", [2, 9, 65])
def test_draws_are_uniform_and_independent_between_streams_and_epochs(bound):
    index = torch.arange(20_000)
    draws = [draw(fold(0, epoch, stream), index, bound) for epoch in (0, 1) for stream in (0, 1)]
    for values in draws:
        assert stats.chisquare(np.bincount(values, minlength=bound)).pvalue > 1e-4
    for i, first in enumerate(draws):
        for second in draws[:i]:
            together = np.bincount(first * bound + second, minlength=bound * bound)
            assert stats.chisquare(together).pvalue > 1e-4
    # neighbouring images are no more alike than others
    assert (
        stats.chisquare(
            np.bincount(draws[0][:-1] * bound + draws[0][1:], minlength=bound**2)
        ).pvalue
        > 1e-4
    )


@pytest.mark.parametrize("padding, flip", [(0, True), (1, False), (4, True), (9, True)])
def test_crop_and_flip_match_pil_one_image_at_a_time(padding, flip):
    batch = make_batch(300)
    moved = Augment(crop_padding=padding, flip=flip).crop_flip(batch, seed=3, epoch=5).images
    shifts = 2 * padding + 1
    down = draw(fold(3, 5, _DOWN), batch.index, shifts) - padding
    right = draw(fold(3, 5, _RIGHT), batch.index, shifts) - padding
    mirrored = draw(fold(3, 5, _FLIP), batch.index, 2) if flip else torch.zeros(300)
    for i in range(300):
        # the crop is taken first: PIL mirrors what was cropped
        expected = oracle.crop_flip(
            hwc(batch.images[i]), int(down[i]), int(right[i]), bool(mirrored[i]), padding
        )
        np.testing.assert_array_equal(hwc(moved[i]), expected)
    if padding:
        assert len(set(down.tolist())) == len(set(right.tolist())) == shifts  # all shifts occur
    if flip:
        assert 100 < mirrored.sum() < 200


def test_the_augmented_image_does_not_depend_on_batch_size_or_order():
    batch, augment = make_batch(), Augment(crop_padding=3, flip=True)
    whole = augment.crop_flip(batch, 1, 2).images
    for rows in ([7], [49, 0, 7], list(range(49, -1, -1))):
        assert torch.equal(augment.crop_flip(take(batch, rows), 1, 2).images, whole[rows])
    assert not torch.equal(augment.crop_flip(batch, 1, 3).images, whole)
    assert not torch.equal(augment.crop_flip(batch, 2, 2).images, whole)


def test_without_augmentation_images_are_untouched():
    batch = make_batch()
    assert Augment().crop_flip(batch, 0, 0) is batch
    assert Augment().mix(batch, 4, 0, 0) is batch


def test_normalise_matches_numpy():
    images = make_batch().images
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    out = normalise(images, (12, 10), mean, std)
    expected = np.stack([oracle.normalise(hwc(image), (12, 10), mean, std) for image in images])
    assert out.dtype == torch.float32
    # a few roundings of float32 on values up to 4
    np.testing.assert_allclose(out.numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("size", [(24, 20), (6, 5)])
def test_resize_matches_pil(size):
    # middling greys: PIL clips overshoots after each of its two passes, we after both
    images = 64 + make_batch(8).images // 2
    out = normalise(images, size, (0.5,) * 3, (0.5,) * 3)
    expected = np.stack(
        [oracle.normalise(hwc(image), size, (0.5,) * 3, (0.5,) * 3) for image in images]
    )
    assert out.shape == (8, 3, *size)
    # PIL rounds to whole grey levels after each pass: together up to 1.5 levels of 2 / 255 each
    np.testing.assert_allclose(out.numpy(), expected, atol=1.5 * 2 / 255)


def test_resizing_keeps_pixels_in_range():
    checkers = (
        ((torch.arange(8)[:, None] + torch.arange(8)) % 2 * 255).to(torch.uint8).expand(1, 3, 8, 8)
    )
    out = normalise(checkers, (13, 13), (0.0,) * 3, (1.0,) * 3)
    assert out.min() == 0 and out.max() == 1  # bicubic alone overshoots


@pytest.mark.parametrize(
    "options", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}]
)
def test_mix_blends_images_and_targets_alike_and_leaves_the_global_generator_alone(options):
    batch = make_batch()
    batch = batch._replace(images=normalise(batch.images, (12, 10), (0.5,) * 3, (0.5,) * 3))
    augment = Augment(**options)
    overlapping = take(batch, [49, *range(50)])._replace(
        first=batch.index[0]
    )  # begins with the image before it
    state = torch.get_rng_state()
    mixed = augment.mix(overlapping, 4, 0, 0)
    assert (
        torch.equal(mixed.index, batch.index)
        and torch.equal(mixed.labels, batch.labels)
        and mixed.valid.all()
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert mixed.targets.shape == (50, 4)
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(50))
    torch.manual_seed(99)
    again = augment.mix(overlapping, 4, 0, 0)
    assert torch.equal(again.images, mixed.images) and torch.equal(again.targets, mixed.targets)
    assert not torch.equal(augment.mix(overlapping, 4, 0, 1).images, mixed.images)
    # the share of the neighbour in the target is the share of the neighbour in the image
    share = mixed.targets.gather(1, batch.labels.roll(1)[:, None])[0]
    moved = (mixed.images - batch.images)[0].abs().sum() / (batch.images.roll(1, 0) - batch.images)[
        0
    ].abs().sum()
    # cutmix: the box's share of pixels, its share of the difference only on average
    torch.testing.assert_close(
        share, moved.view(1), atol=1e-5 if "cutmix" not in options else 0.1, rtol=0
    )


@pytest.mark.parametrize("padding", [10, 11])
def test_padding_as_wide_as_the_image_is_refused(padding):
    with pytest.raises(UserError, match="crop_padding: expected less than 10 pixels, got"):
        Augment(crop_padding=padding).crop_flip(make_batch(), 0, 0)
    with pytest.raises(UserError, match=r"^mixup: expected 0 or more, got -1"):
        Augment(mixup=-1)
    with pytest.raises(UserError, match=r"^magnitude: expected 0 to 30, got 31"):
        Augment(rand_augment=1, magnitude=31)
    Augment(rand_augment=1, magnitude=30).distort(make_batch(2), 0, 0)


def test_reseeding_the_cpu_draws_what_torch_would_and_prepares_no_other_device(monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12)
        expected = torch.rand(5)
        monkeypatch.setattr(
            torch, "manual_seed", lambda number: pytest.fail("every device was seeded")
        )
        for device in (None, torch.device("cpu")):
            reseed(12, device)
            assert torch.equal(torch.rand(5), expected)
        reseed(13)
        assert not torch.equal(torch.rand(5), expected)


def test_rand_augment_draws_for_each_image_apart_and_leaves_the_global_generator_alone():
    augment, batch = Augment(rand_augment=2, magnitude=15), make_batch(12)
    before = torch.get_rng_state()
    whole = augment.distort(batch, 0, 3)
    assert torch.equal(torch.get_rng_state(), before)
    rows = [7, 2, 5]
    assert torch.equal(augment.distort(take(batch, rows), 0, 3).images, whole.images[rows])
    changed = (whole.images != batch.images).flatten(1).any(1)
    assert (
        whole.images.dtype == torch.uint8 and changed.sum() > 6
    )  # identity is one of 14 operations
    for other in (augment.distort(batch, 0, 4), augment.distort(batch, 1, 3)):
        assert not torch.equal(other.images, whole.images)
