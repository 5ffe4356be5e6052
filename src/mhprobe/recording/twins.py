"""A corrupted twin of every image: the other half of the pairs that heads are patched between.

Who gets which donor, and which noise, depends on the image alone (and a seed), not on its batch, the order or the rank.

Shapes: B images, N donors.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError, one_of
from mhprobe.heads import Donors, Patching
from mhprobe.measures.parts.hashing import image_numbers, mixed

Corrupt = Literal["class", "noise", "object"]


class Twins(NamedTuple):
    """Corrupted twins of a batch.

    images: (B, ...) like the clean ones. label: (B,) of the donors, None where there are none. paired: (B,) bool.
    donor: (B,) place of each image's donor among all of them, None where there are none.
    """

    images: Tensor
    label: Tensor | None
    paired: Tensor
    donor: Tensor | None = None


def twins(images: Tensor, labels: Tensor, objects: Tensor | None, need: Patching) -> Twins:
    """Of images (B, 3, height, width) and their labels (B,). objects: (B, height, width), 0 is ground.

    UserError for a corruption that does not exist, needs masks that are not there, or cannot be done to text.
    """
    one_of("patching", "corrupt", need.corrupt, Corrupt)
    if need.corrupt == "class":
        return _of_another_class(images, labels, need)
    if not images.is_floating_point():
        raise UserError(f"patching: corrupt={need.corrupt} is for images, not for tokens. Use corrupt=class.")
    if need.corrupt == "noise":
        return Twins(images + _noise(images, need), None, torch.ones(len(images), dtype=torch.bool).to(images.device))
    if objects is None:
        raise UserError(
            "patching: corrupt=object needs object masks beside the images. Use data=scenes, data=pets, or "
            "corrupt=class."
        )
    return _without_objects(images, objects.to(images.device) > 0)


def _of_another_class(images: Tensor, labels: Tensor, need: Patching) -> Twins:
    number_B = image_numbers(images)
    donors = need.donors or Donors(images, labels, number_B)
    number_N, label_N = donors.number.to(images.device), donors.labels.to(images.device)
    drawn_BN = mixed(number_B[:, None] ^ mixed(number_N + need.seed))
    other_BN = label_N != labels[:, None]
    chosen_B = drawn_BN.masked_fill(~other_BN, torch.iinfo(torch.int64).max).argmin(1)
    paired = other_BN.any(1)
    theirs = donors.images.to(images)[chosen_B]
    return Twins(torch.where(_spread(paired, images), theirs, images), label_N[chosen_B], paired, chosen_B)


def _noise(images: Tensor, need: Patching) -> Tensor:
    drawn = []
    for image, number in zip(images, mixed(image_numbers(images) + need.seed).tolist(), strict=True):
        generator = torch.Generator().manual_seed(number)
        drawn.append(torch.randn(image.shape, generator=generator).to(image) * image.std() * need.noise)
    return torch.stack(drawn) if drawn else torch.zeros_like(images)


def _without_objects(images: Tensor, shown_BYX: Tensor) -> Twins:
    """Every object in the mean colour of the ground around it."""
    ground = ~shown_BYX[:, None]
    mean = (images * ground).sum((2, 3), keepdim=True) / ground.sum((2, 3), keepdim=True).clamp(min=1)
    seen = shown_BYX.flatten(1)
    return Twins(torch.where(ground, images, mean), None, seen.any(1) & ~seen.all(1))


def _spread(of_B: Tensor, images: Tensor) -> Tensor:
    return of_B.view(-1, *[1] * (images.dim() - 1))
