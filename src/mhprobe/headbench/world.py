"""The images of HeadBench: patches whose pixels are a few features, so that weights can be written by hand.

Every patch has noise. A square of 4 x 4 patches, the object, has the texture of its class, and, weaker, that of
another. The first patch has the mark of a class, mostly the right one: a shortcut. Of every 4 x 4 patches one is
bright: the landmark that Swin's sinks look at, for there is no class token.

Shapes: B images, F pixel features, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.data.batch import Batch

CLASSES, GRID, PATCH, OBJECT, NOISE = 4, 8, 4, 4, 24
TEXTURE, MARK, LANDMARK = slice(0, 4), slice(4, 8), 8
FEATURES = 9 + NOISE
MARKED = 0.9  # share of images whose mark is right
CORNERS = [(y, x) for y in (0, 2, 4) for x in (0, 2, 4) if (y, x) != (0, 0)]


class World(NamedTuple):
    """Images of the planted world.

    images: (B, 3, 32, 32). labels, marks: (B,). objects: (B, 32, 32), 1 on the object.
    """

    images: Tensor
    labels: Tensor
    marks: Tensor
    objects: Tensor

    def batch(self) -> Batch:
        return Batch.whole(self.images, self.labels, self.objects)


def pixels_of_features() -> Tensor:
    """(3 * 4 * 4, F) orthonormal columns: how a feature looks. The same in every world."""
    generator = torch.Generator().manual_seed(20)
    return torch.linalg.qr(torch.randn(3 * PATCH * PATCH, FEATURES, generator=generator)).Q


def draw(count: int, seed: int, shown: Tensor | None = None, marked: Tensor | None = None) -> World:
    """Draw ``count`` images. shown, marked: (B,) other classes for object and mark, all else as it was."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    wrong = torch.randint(CLASSES, (count,), generator=generator)
    marks = torch.where(torch.rand(count, generator=generator) < MARKED, labels, wrong)
    other = (labels + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
    strength = 0.7 * torch.rand(count, generator=generator)
    place = torch.randint(len(CORNERS), (count,), generator=generator)
    noise = torch.randn(count, GRID, GRID, NOISE, generator=generator)
    bright = torch.randint(4, (count, 2, 2, 2), generator=generator)  # where in each window
    texture, mark = labels if shown is None else shown, marks if marked is None else marked

    features = torch.zeros(count, GRID, GRID, FEATURES)
    features[..., LANDMARK + 1 :] = noise
    objects = torch.zeros(count, GRID, GRID, dtype=torch.long)
    for image in range(count):
        y, x = CORNERS[int(place[image])]
        here = features[image, y : y + OBJECT, x : x + OBJECT]
        here[..., TEXTURE.start + int(other[image])] += strength[image]
        here[..., TEXTURE.start + int(texture[image])] += 2.0
        objects[image, y : y + OBJECT, x : x + OBJECT] = 1
        features[image, 0, 0, MARK.start + int(mark[image])] = 3.0
        for v in range(2):
            for h in range(2):
                down, across = bright[image, v, h].tolist()
                features[image, 4 * v + down, 4 * h + across, LANDMARK] = 3.0
    patches = (features @ pixels_of_features().T).unflatten(-1, (3, PATCH, PATCH))
    images = patches.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, GRID * PATCH, GRID * PATCH)
    objects = objects.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    return World(images.contiguous(), labels, mark, objects)
