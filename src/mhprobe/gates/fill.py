"""Fills: replacements for the outputs of heads whose gates are closed; ``recording.fills`` computes them.

For a gate of xi, (1 - xi) times the replacement is added to the head's output before the
projection.

Shapes: S images that they are for (1: the same for all), W windows of an image, T tokens, H heads
of one site, D head width. W and T are 1 where replacements are the same everywhere.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from mhprobe.errors import UserError


@dataclass(frozen=True, eq=False)
class Fill:
    """Replacements for the outputs of heads.

    sites: per site (S, W, T, H * D), as its projection sees them.

    image: shape of an image, if replacements are by position.
    """

    sites: tuple[Tensor, ...]
    image: tuple[int, ...] = field(default=(), kw_only=True)

    def for_images(self, images: Tensor) -> "Fill":
        """Return the values for a batch of these images.

        UserError for places of an image of another size.
        """
        if self.image and self.image != (got := tuple(images.shape[1:])):
            raise UserError(
                f"fill: found by position on images {self.image}, expected the same, got {got}. "
                "Use mean."
            )
        return self

    def rows(self, number: int) -> Tensor:
        """(S * W, T, H * D) values of one site, to be repeated along the rows of its input."""
        return self.sites[number].flatten(0, 1)


class Filling(NamedTuple):
    """A fill for a batch, and the share of each head that it replaces, (R, A): a row for each part of the batch."""

    fill: Fill
    left_out: Tensor
