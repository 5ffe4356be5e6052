"""Damaged copies of the test images: does a head do the same where the pixels are worse?

Hendrycks & Dietterich, 2019, arXiv 1903.12261: the severities of CIFAR-10-C, for 32 pixels, with
torchvision. Only the test split is damaged. An image's damage depends on the seed and its position
alone.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhprobe.data.draws import draw, fold
from mhprobe.data.source import Contents, Source, Wanted
from mhprobe.errors import UserError, quoted

KINDS: dict[str, tuple[float, ...]] = {  # how strong, at severities 1 to 5
    "blur": (0.4, 0.6, 0.7, 0.8, 1.0),  # deviation in pixels
    "noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # deviation of pixels in [0, 1]
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # share that is left
    "jpeg": (80, 65, 58, 50, 40),  # quality
}


def _damaged(image: Tensor, kind: str, severity: int) -> Tensor:
    from torchvision.transforms.v2 import functional

    amount = KINDS[kind][severity - 1]
    if kind == "blur":
        return functional.gaussian_blur(image, kernel_size=[7, 7], sigma=[amount, amount])
    if kind == "noise":
        return (functional.gaussian_noise(image / 255, sigma=amount) * 255).round().to(torch.uint8)
    return (
        functional.adjust_contrast(image, amount)
        if kind == "contrast"
        else functional.jpeg(image, int(amount))
    )


class Corrupted:
    """A data set with damaged test images.

    source: the data set to damage. kinds: some of blur, noise, contrast, jpeg; None for all. A test
    image gets one.
    severity: 1 (slight) to 5. seed: of which image gets which kind, and of the noise.
    """

    def __init__(
        self, source: Source, kinds: Sequence[str] | None = None, severity: int = 3, seed: int = 0
    ) -> None:
        kinds = list(KINDS) if kinds is None else kinds
        if not kinds or not set(kinds) <= set(KINDS):
            raise UserError(f"kinds: expected some of {', '.join(KINDS)}, got {list(kinds)}.")
        if severity not in range(1, 6):
            raise UserError(f"severity: expected 1 (slight) to 5, got {quoted(severity)}.")
        self.source, self.kinds, self.severity, self.seed = source, tuple(kinds), severity, seed
        self.name = f"{source.name}_corrupted"

    def key(self) -> dict[str, Any]:
        return {
            **self.source.key(),
            "kinds": self.kinds,
            "severity": self.severity,
            "damage_seed": self.seed,
        }

    def scan(self) -> Contents:
        contents = self.source.scan()

        def images(wanted: Wanted | None = None) -> Iterator[tuple[Any, ...]]:
            walk = contents.walk(wanted)
            for split, position, image, *masks in walk:  # no damage moves an object
                yield (
                    split,
                    position,
                    self.damaged(image, position) if split == "test" else image,
                    *masks,
                )

        return dataclasses.replace(contents, images=images, some=images)

    def kind_of(self, position: int) -> str:
        """Return the damage of the test image at ``position``."""
        return self.kinds[int(draw(fold(self.seed), torch.tensor(position), len(self.kinds)))]

    def damaged(self, image: np.ndarray, position: int) -> np.ndarray:
        """(height, width, 3) uint8 -> the same, damaged."""
        pixels = torch.from_numpy(image.copy()).permute(
            2, 0, 1
        )  # a decoder may lend its own memory
        with torch.random.fork_rng(devices=[]):  # torchvision draws noise from the global generator
            torch.manual_seed(fold(self.seed, position))
            pixels = _damaged(pixels, self.kind_of(position), self.severity)
        return pixels.permute(1, 2, 0).numpy()
