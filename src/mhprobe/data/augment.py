"""Augmentation and normalisation of whole batches, on the device the batch is on, with numbers from data.draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mhprobe.data.batch import Batch
from mhprobe.data.draws import draw, fold, reseed
from mhprobe.errors import UserError

# one stream per kind of draw; a new augmentation takes the next number, so that it changes no other
_DOWN, _RIGHT, _FLIP, _MIX, _RAND = range(5)
GREY = "grey, .299 red + .587 green + .114 blue"  # what ``grey`` gives, in words
STRONGEST = 30  # of torchvision's RandAugment, whose scale has 31 steps


@dataclass(frozen=True)
class Augment:
    """Augmentations of training images; the defaults do nothing.

    crop_padding: pixels of reflected border within which a crop of the original size is placed at
    random.
    flip: mirror half of the images left to right. Wrong where left and right mean something
    (digits, text).
    rand_augment: so many of torchvision's RandAugment operations on each image, 0 for off;
    magnitude: how strong they
        are, 0 to 30. Image by image: it costs more than all the others together.
    mixup, cutmix: the Beta distribution's parameter, 0 for off; with both, each batch takes one of
    them at random.
    """

    crop_padding: int = 0
    flip: bool = False
    rand_augment: int = 0
    magnitude: int = 9
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise UserError(f"{name}: expected 0 or more, got {value}.")
        if self.magnitude > STRONGEST:
            raise UserError(f"magnitude: expected 0 to {STRONGEST}, got {self.magnitude}.")

    @property
    def mixes(self) -> list[str]:
        """The ways to blend images that are on."""
        return [name for name in ("mixup", "cutmix") if getattr(self, name)]

    def crop_flip(self, batch: Batch, seed: int, epoch: int) -> Batch:
        """Randomly shifted and mirrored images, same shape, uint8, by one gather."""
        images, index = batch.images, batch.index
        if not self.crop_padding and not self.flip:
            return batch
        height, width = images.shape[-2:]
        if self.crop_padding >= min(height, width):
            raise UserError(
                f"crop_padding: expected less than {min(height, width)} pixels, got "
                f"{self.crop_padding}."
            )
        shifts = 2 * self.crop_padding + 1
        down = draw(fold(seed, epoch, _DOWN), index, shifts) - self.crop_padding
        right = draw(fold(seed, epoch, _RIGHT), index, shifts) - self.crop_padding
        mirrored = (
            draw(fold(seed, epoch, _FLIP), index, 2).bool()
            if self.flip
            else torch.zeros_like(index).bool()
        )
        # for every output pixel the row and column it comes from; reflection does not repeat the
        # edge pixel
        x = torch.arange(width, device=index.device)
        x = torch.where(mirrored[:, None], width - 1 - x, x)
        rows = _reflect(down[:, None] + torch.arange(height, device=index.device), height)
        columns = _reflect(right[:, None] + x, width)
        pixel = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
        moved = images.flatten(2).gather(2, pixel[:, None].expand(-1, images.shape[1], -1))
        return batch._replace(images=moved.view_as(images))

    def distort(self, batch: Batch, seed: int, epoch: int) -> Batch:
        """Images after RandAugment (Cubuk et al., 2020, arXiv 1909.13719), same shape, uint8; each has its own draw."""
        if not self.rand_augment:
            return batch
        from torchvision.transforms import v2

        transform = v2.RandAugment(self.rand_augment, self.magnitude)
        images = batch.images.clone()
        with torch.random.fork_rng(devices=[]):
            for row, number in enumerate(
                draw(fold(seed, epoch, _RAND), batch.index, 1 << 62).tolist()
            ):
                reseed(number)
                images[row] = transform(images[row])
        return batch._replace(images=images)

    def mix(self, batch: Batch, num_classes: int, seed: int, epoch: int) -> Batch:
        """Each image but the first blended with the one before it, with (B - 1, C) soft targets; float images.

        The batch begins with the image before it in the batch of all ranks, and ``batch.first``
        seeds the draw (``TrainOrder`` with ``mixed``), so that any number of ranks trains on the
        same images.
        """
        if not (chosen := self.mixes):
            return batch
        assert batch.first is not None
        from torchvision.transforms import v2

        # torchvision draws from the global generator, on the CPU: lend it one that is put back
        with torch.random.fork_rng(devices=[]):
            reseed(fold(seed, epoch, _MIX, int(batch.first)))
            name = chosen[int(torch.randint(len(chosen), ()))]
            transform = {"mixup": v2.MixUp, "cutmix": v2.CutMix}[name]
            blend = transform(alpha=float(getattr(self, name)), num_classes=len(batch.index))
            images, shares_BB = blend(
                batch.images, torch.arange(len(batch.index), device=batch.index.device)
            )
        targets = shares_BB @ functional.one_hot(batch.labels, num_classes).float()
        mixed = batch._replace(
            images=images, targets=targets, other=batch.index.roll(1), share=shares_BB.diagonal()
        )
        return mixed.part(slice(1, None))


def _reflect(position: Tensor, size: int) -> Tensor:
    """Positions up to size - 1 outside [0, size) folded back: -1 -> 1, size -> size - 2."""
    position = position.abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)


def normalise(
    images: Tensor, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """(B, C, h, w) uint8 -> (B, C, *size) float32: resized (bicubic, antialiased), then (x / 255 - mean) / std.

    Of images of another shape the middle is taken, so that a disc stays round. Colours turn grey
    for one ``mean``. UserError for images of another number of channels than ``mean`` and ``std``.
    """
    if (len(mean), images.shape[-3]) == (1, 3):
        images = grey(images)
    if {len(mean), len(std)} != {images.shape[-3]}:
        raise UserError(
            f"images: expected {len(mean)} channels, as the network takes, got {images.shape[-3]}. "
            "Give images of as many."
        )
    pixels = middle(images, size).to(torch.float32)
    if tuple(images.shape[-2:]) != tuple(size):
        # bicubic overshoots at edges; like PIL, clip to what a pixel can be
        pixels = functional.interpolate(pixels, size=size, mode="bicubic", antialias=True).clamp_(
            0, 255
        )
    mean_C11 = torch.tensor(mean, device=images.device).view(-1, 1, 1)
    std_C11 = torch.tensor(std, device=images.device).view(-1, 1, 1)
    return pixels.mul_(1 / (255 * std_C11)).sub_(mean_C11 / std_C11)


def middle(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest middle of images (..., h, w) with the shape of ``size``, to a pixel: a view."""
    height, width = images.shape[-2:]
    rows = max(1, min(height, round(width * size[0] / size[1])))
    columns = max(1, min(width, round(height * size[1] / size[0])))
    top, left = (height - rows) // 2, (width - columns) // 2
    return images[..., top : top + rows, left : left + columns]


def grey(images: Tensor) -> Tensor:
    """(B, 3, h, w) uint8 -> (B, 1, h, w) uint8: the brightness of colours (ITU-R 601), as Pillow's."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    return (images.float() * weights).sum(1, keepdim=True).round().to(torch.uint8)


def channels_shown(channels: int) -> str:
    """Return which channels of an image its picture shows, in words; "" for one and for three, which are all shown."""
    if channels in (1, 3):
        return ""
    return (
        f"channels 1 to 3 of {channels}" if channels > 3 else f"mean of {channels} channels, grey"
    )


def in_colours(images: Tensor) -> tuple[Tensor, str]:
    """(..., C, h, w) of any channels -> (..., 3, h, w), the first three, or grey; and words on what is shown."""
    channels = images.shape[-3]
    part = channels_shown(channels)
    words = f"image ({part})" if part else "image"
    if channels >= 3:
        return images[..., :3, :, :], words
    mean = images.float().mean(-3, keepdim=True)
    mean = mean if images.is_floating_point() else mean.round().to(images.dtype)
    return mean.expand(*images.shape[:-3], 3, *images.shape[-2:]), words


def resized(objects: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, h, w) uint8 -> (B, *size) int64: what each pixel shows, from the nearest old pixel (ids are not blended).

    Of another shape the middle is taken, as of the images.
    """
    of_shape = middle(objects, size)[:, None].float()
    return functional.interpolate(of_shape, size=size, mode="nearest-exact")[:, 0].long()
