"""Fills: what stands in a head's place while its gate is closed.

Where a gate lets a head through by xi, (1 - xi) times what stands in its place is added, before the projection. Which
numbers those are is found in ``recording.fills``; here they are only kept.

Shapes: S images they were found for (1: the same for all), W windows of an image (1 for global attention), T tokens,
H heads of one site, D head width. W and T are 1 where they are the same everywhere.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Fill:
    """Values for the places of heads.

    sites: per site (S, W, T, H * D), in the order in which the site's projection sees them.
    """

    sites: tuple[Tensor, ...]

    def for_images(self, images: Tensor) -> "Fill":
        """Return the values for a batch of these images."""
        return self

    def rows(self, number: int) -> Tensor:
        """(S * W, T, H * D) of one site: what repeats along the rows of its input."""
        return self.sites[number].flatten(0, 1)


class Filling(NamedTuple):
    """A fill and the heads that it stands for.

    fill: of a batch. left_out: (R, A) the missing share of every head, a row for each part of the batch.
    """

    fill: Fill
    left_out: Tensor
