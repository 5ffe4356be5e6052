"""Sums over images of a few numbers per row, and of their products: a value that is a mean, with its interval.

An image gives every row (a head, a pair of heads) K numbers s, e.g. its sum over queries and its
number of queries. The value is a function f of the sums S over all n images that does not change
when all of them grow alike: by default the ratio of the first to the second. Linearised (Cochran,
1977, Sampling Techniques, ch. 6), its standard error is

    sqrt(n / (n - 1) g^T (P - S S^T / n) g),  with g = df / dS, and P the sum over images of s s^T.

P - S S^T / n is a difference of sums: a spread below a hundred-thousandth of the numbers is
rounding, and called 0.
Shapes: R rows, K numbers.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.stats.intervals import interval

_RESOLUTION = 1e-10
Place = slice | tuple[slice | Tensor, ...]


class MeanOverImages(Measure):
    """Base of measures whose value is made of sums over images of K ``numbers`` per row (head; of_pairs: pair)."""

    numbers: ClassVar[int] = 2
    of_pairs: ClassVar[bool] = False

    image_sums: Tensor  # (K, *rows)
    image_products: Tensor  # (K, K, *rows)

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        rows = (layout.num_heads,) * (2 if self.of_pairs else 1)
        self.add_state("image_sums", torch.zeros(self.numbers, *rows, dtype=torch.float64))
        self.add_state(
            "image_products", torch.zeros(self.numbers, self.numbers, *rows, dtype=torch.float64)
        )

    def add_images(self, rows: Place, *numbers: Tensor | float) -> None:
        """Add images.

        rows: their heads or pairs. numbers: K of them, each (B, rows) or broadcast to it.
        """
        tensors = [
            torch.as_tensor(number, dtype=torch.float64, device=self.device) for number in numbers
        ]
        of_image = torch.stack(torch.broadcast_tensors(*tensors))  # (K, B, rows)
        at = rows if isinstance(rows, tuple) else (rows,)
        self.image_sums[(slice(None), *at)] += of_image.sum(1)
        for k, number in enumerate(of_image):
            self.image_products[(k, slice(None), *at)] += (number * of_image).sum(1)

    def over_images(
        self, function: Callable[[Tensor], Tensor] = lambda sums: sums[0] / sums[1]
    ) -> dict[str, Tensor]:
        """Columns "value", "low" and "high" (95 % over images, NaN with one), by a function of (K, *rows) sums."""
        images = int(self.images)
        with torch.inference_mode(False), torch.enable_grad():
            sums = self.image_sums.clone().requires_grad_()
            value = function(sums)
            (slope,) = torch.autograd.grad(value.sum(), sums)
        sums = sums.detach()
        value = value.detach()
        spread = self.image_products - sums[:, None] * sums / max(images, 1)
        square = torch.einsum("k...,l...,kl...->...", slope, slope, spread)
        whole = torch.einsum(
            "k...,l...,kl...->...", slope.abs(), slope.abs(), self.image_products.abs()
        )
        square = square.where(square > _RESOLUTION * whole, 0.0)
        error = (square * images / max(images - 1, 1)).sqrt()
        low, high = interval(value, error, images - 1, self.within)
        return {"value": value, "low": low, "high": high}
