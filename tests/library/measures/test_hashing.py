"""What images are drawn by."""

from __future__ import annotations

import torch

from mhprobe.measures.parts.hashing import image_numbers


def photographs(count: int = 200) -> torch.Tensor:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ([0.49, 0.48, 0.45], [0.25, 0.24, 0.26]))
    return (pixels / 255 - mean) / std


def test_images_in_bfloat16_have_the_numbers_that_they_have_in_any_precision():
    images = photographs()
    numbers = image_numbers(images)
    assert torch.equal(image_numbers(images.bfloat16()), numbers)
    assert torch.equal(image_numbers(images.double()), numbers)
    assert len(set(numbers.tolist())) == 200
    assert not torch.equal(image_numbers(photographs().flip(3)), numbers)


def test_a_step_of_a_single_pixel_is_another_image():
    images = photographs(2)
    images[1] = images[0]
    images[1, 0, 0, 0] += 1 / 255 / 0.25
    assert len(set(image_numbers(images).tolist())) == 2


def test_tokens_are_not_rounded():
    texts = torch.tensor([[101, 30_000], [101, 30_001]])  # the same in bfloat16
    assert len(set(image_numbers(texts).tolist())) == 2
