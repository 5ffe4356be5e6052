"""Second moments of a group of channels, streamed: all that CCA and its relatives need to know about the data.

float64 throughout: in float32 the covariance, a small difference of large sums, is wrong by several
per cent.
Shapes: N rows, C channels, H parts (heads, or layers) of D channels each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# rows cast to float64 at a time: they stay in the cache, and a large batch is never copied whole
CHUNK = 1024
# channels multiplied at a time; blocks left of the diagonal are skipped, which saves nearly half
_BLOCK = 96
_NUMBERS, _WIDE = (
    2**25,
    768,
)  # elsewhere than on a CPU: numbers cast, and channels multiplied, at a time
_RESOLUTION = (
    1e-12  # a direction with less of its part's mean square is rounding noise of the float64 sums
)

Seen = Callable[[int | None], "Parts"]
Block = Callable[[slice, slice], Tensor]


def add_products(outer_CC: Tensor, x_NC: Tensor) -> None:
    """Add x^T x in place.

    Only the upper triangle is right, see ``symmetric``: that takes little more than half.
    """
    width = _BLOCK if x_NC.device.type == "cpu" else _WIDE
    for start in range(0, x_NC.shape[1], width):
        block = x_NC[:, start : start + width]
        outer_CC[start : start + width, start:].addmm_(block.mT, x_NC[:, start:])


def symmetric(outer_CC: Tensor) -> Tensor:
    """The matrix whose upper triangle, with the diagonal, ``add_products`` has made."""
    return outer_CC.triu() + outer_CC.triu(1).mT


@dataclass(frozen=True)
class Moments:
    """n, sum x and sum x x^T of the rows so far, by fold of images.

    The tensors are updated in place.

    rows: (J,) int64. total: (J, C) float64. outer: (J, C, C) float64, of which only the upper
    triangle is kept.
    """

    rows: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def zeros(cls, folds: int, channels: int, device: torch.device | None = None) -> Self:
        return cls(
            rows=torch.zeros(folds, dtype=torch.long, device=device),
            total=torch.zeros(folds, channels, dtype=torch.float64, device=device),
            outer=torch.zeros(folds, channels, channels, dtype=torch.float64, device=device),
        )

    def add(self, x_NC: Tensor, fold: int = 0) -> None:
        """Add rows of any floating dtype, of images of one fold."""
        for chunk in x_NC.split(
            CHUNK if x_NC.device.type == "cpu" else max(CHUNK, _NUMBERS // x_NC.shape[1])
        ):
            chunk = chunk.double()
            self.total[fold].add_(chunk.sum(0))
            add_products(self.outer[fold], chunk)
        self.rows[fold].add_(len(x_NC))

    def merge(self, other: Self) -> None:
        self.rows.add_(other.rows)
        self.total.add_(other.total)
        self.outer.add_(other.outer)

    def parts(self, width: int) -> Seen:
        """Function from a fold to the parts (runs of ``width`` channels) without its images; None: with all images."""
        rows, total, outer = (
            sums[0] if len(sums) == 1 else sums.sum(0) for sums in vars(self).values()
        )

        def seen(without: int | None = None) -> Parts:
            if without is None:
                return Parts.of(rows, total, lambda one, others: outer[one, others], width)

            def left(one: slice, others: slice) -> Tensor:
                return outer[one, others] - self.outer[without, one, others]

            return Parts.of(rows - self.rows[without], total - self.total[without], left, width)

        return seen


@dataclass(frozen=True)
class Parts:
    """Second moments of equally wide parts, the material of every similarity.

    rows: () n. covariance: of two runs of channels, the second not left of the first, divided by n
    - 1. spectrum: (H, D) falling eigenvalues of each part's own covariance, 0 for rounding noise.
    direction: (H, D, D) their eigenvectors, as columns. mean: (H, D).
    """

    rows: Tensor
    covariance: Block
    spectrum: Tensor
    direction: Tensor
    mean: Tensor

    @classmethod
    def of(cls, rows: Tensor, total: Tensor, outer: Block, width: int) -> Self:
        """Arguments as of Moments, without folds; of ``outer`` the upper triangle."""
        mean = total / rows

        def covariance(one: slice, others: slice) -> Tensor:
            centred = torch.addr(outer(one, others), total[one], mean[others], alpha=-1)
            return centred.div_((rows - 1).clamp(min=1))

        runs = [slice(start, start + width) for start in range(0, len(total), width)]
        covariances = torch.stack([covariance(run, run) for run in runs])
        eigenvalue, direction = torch.linalg.eigh(covariances, UPLO="U")
        square = torch.stack([outer(run, run).diagonal() for run in runs]) / rows
        spectrum = eigenvalue.where(
            eigenvalue > _RESOLUTION * square.sum(1, keepdim=True), 0.0
        ).flip(1)
        return cls(rows, covariance, spectrum, direction.flip(2), mean.view(-1, width))

    @property
    def alive(self) -> Tensor:
        """(H,) bool: whether the part's output varies at all."""
        return self.spectrum[:, 0] > 0

    def crosses(self, a: int) -> Tensor:
        """(H - a, D, D) covariance of part a with a, a + 1, ..."""
        count, width = self.spectrum.shape
        row = self.covariance(slice(a * width, (a + 1) * width), slice(a * width, count * width))
        row[:, :width] = symmetric(row[:, :width])
        return row.unflatten(1, (-1, width)).transpose(0, 1)

    def between(self, compare: Callable[[int, Tensor], Tensor]) -> Tensor:
        """(H, H, ...) symmetric results of ``compare``, which gets a part's number a and ``crosses(a)``."""
        rows = [compare(a, self.crosses(a)) for a in range(len(self.spectrum))]
        both = rows[0].new_empty(len(rows), *rows[0].shape)
        for a, row in enumerate(rows):
            both[a, a:] = both[a:, a] = row
        return both
