"""Second moments of a group of channels, streamed: all that CCA and its relatives need to know about the data.

float64 throughout: in float32 the covariance, a small difference of large sums, is wrong by several per cent.

Shapes: N rows, C channels, J folds of images, H parts (heads, or layers) of D channels each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1024  # rows cast to float64 at a time: they stay in the cache, and a large batch is never copied whole
_BLOCK = 96  # channels multiplied at a time; blocks left of the diagonal are skipped, which saves nearly half
_NUMBERS, _WIDE = 2**25, 768  # elsewhere than on a CPU: numbers cast, and channels multiplied, at a time

# a direction with less than this share of its part's mean square is rounding noise of the float64 sums
_RESOLUTION = 1e-12


@dataclass(frozen=True)
class SecondMoments:
    """n, sum x and sum x x^T of the rows seen so far. The tensors are updated in place.

    rows: () int64. total: (C,) float64. outer: (C, C) float64, of which only the upper triangle is kept up to date.
    """

    rows: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def zeros(cls, channels: int, device: torch.device | None = None) -> SecondMoments:
        return cls(
            rows=torch.zeros((), dtype=torch.long, device=device),
            total=torch.zeros(channels, dtype=torch.float64, device=device),
            outer=torch.zeros(channels, channels, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(cls, x_NC: Tensor) -> SecondMoments:
        """Return the moments of the rows of ``x_NC`` alone."""
        moments = cls.zeros(x_NC.shape[1], x_NC.device)
        moments.add(x_NC)
        return moments

    def add(self, x_NC: Tensor) -> None:
        """Take in the rows of ``x_NC``, of any floating dtype."""
        rows = CHUNK if x_NC.device.type == "cpu" else max(CHUNK, _NUMBERS // x_NC.shape[1])
        for chunk in x_NC.split(rows):
            chunk = chunk.double()
            self.total.add_(chunk.sum(0))
            self.add_products(chunk)

    def add_products(self, x_NC: Tensor) -> None:
        """Take in rows of float64, but for their total, which the caller has."""
        width = _BLOCK if x_NC.device.type == "cpu" else _WIDE
        for start in range(0, x_NC.shape[1], width):
            block = x_NC[:, start : start + width]
            self.outer[start : start + width, start:].addmm_(block.mT, x_NC[:, start:])
        self.rows.add_(len(x_NC))

    def merge(self, other: SecondMoments) -> None:
        """Take in the rows that ``other`` has seen."""
        self.rows.add_(other.rows)
        self.total.add_(other.total)
        self.outer.add_(other.outer)

    @property
    def mean_square(self) -> Tensor:
        """(C,) mean of x^2 per channel, without centring."""
        return self.outer.diagonal() / self.rows

    @property
    def covariance(self) -> Tensor:
        """(C, C), divided by n - 1."""
        full = self.outer.triu()
        full += self.outer.triu(1).mT
        return full.addr_(self.total, self.total / self.rows, alpha=-1).div_((self.rows - 1).clamp(min=1))


@dataclass(frozen=True)
class FoldedMoments:
    """Second moments by fold of images, so that one fold at a time can be left out. Updated in place.

    rows: (J,) int64. total: (J, C). outer: (J, C, C), as in SecondMoments.
    """

    rows: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def zeros(cls, folds: int, channels: int, device: torch.device | None = None) -> FoldedMoments:
        return cls(
            rows=torch.zeros(folds, dtype=torch.long, device=device),
            total=torch.zeros(folds, channels, dtype=torch.float64, device=device),
            outer=torch.zeros(folds, channels, channels, dtype=torch.float64, device=device),
        )

    def of(self, fold: int) -> SecondMoments:
        """A fold's, to add to."""
        return SecondMoments(self.rows[fold], self.total[fold], self.outer[fold])

    def merge(self, other: FoldedMoments) -> None:
        """Take in the rows that ``other`` has seen."""
        self.rows.add_(other.rows)
        self.total.add_(other.total)
        self.outer.add_(other.outer)

    @property
    def whole(self) -> SecondMoments:
        """All folds together."""
        return SecondMoments(self.rows.sum(), self.total.sum(0), self.outer.sum(0))

    def without(self, fold: int) -> SecondMoments:
        """All folds but one."""
        whole = self.whole
        return SecondMoments(
            whole.rows - self.rows[fold], whole.total - self.total[fold], whole.outer.sub_(self.outer[fold])
        )


@dataclass(frozen=True)
class Parts:
    """Second moments of equally wide parts, the material of every similarity.

    rows: () n. covariance: (H, D, H, D) between all of them. spectrum: (H, D) falling eigenvalues of each part's own
    covariance, 0 where there is nothing but rounding noise. direction: (H, D, D) their eigenvectors, as columns.
    mean: (H, D).
    """

    rows: Tensor
    covariance: Tensor
    spectrum: Tensor
    direction: Tensor
    mean: Tensor

    @classmethod
    def of(cls, moments: SecondMoments, width: int) -> Parts:
        """The parts are runs of ``width`` channels."""
        heads = len(moments.total) // width
        covariance = moments.covariance.view(heads, width, heads, width)
        energy_H1 = moments.mean_square.view(heads, width).sum(1, keepdim=True)
        own = torch.arange(heads, device=energy_H1.device)
        eigenvalue, direction = torch.linalg.eigh(covariance[own, :, own])
        spectrum = eigenvalue.where(eigenvalue > _RESOLUTION * energy_H1, 0.0).flip(1)
        mean = (moments.total / moments.rows).view(heads, width)
        return cls(moments.rows, covariance, spectrum, direction.flip(2), mean)

    @property
    def alive(self) -> Tensor:
        """(H,) bool: whether the part's output varies at all."""
        return self.spectrum[:, 0] > 0

    def crosses(self, a: int) -> Tensor:
        """(H - a, D, D) covariance of part a with a, a + 1, ...

        One part at a time: all pairs at once would copy the whole covariance.
        """
        return self.covariance[a, :, a:].transpose(0, 1)
