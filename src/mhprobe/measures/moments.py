"""Second moments of a group of channels, streamed: all that CCA and its relatives need to know about the data.

float64 throughout: in float32 the covariance, a small difference of large sums, is wrong by several per cent.

Shapes: N rows, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 4096  # rows cast to float64 at a time, so that a large batch is never copied whole
_BLOCK = 128  # channels multiplied at a time; blocks left of the diagonal are skipped, which saves nearly half


@dataclass(frozen=True)
class SecondMoments:
    """n, sum x and sum x x^T of the rows seen so far. The tensors are updated in place.

    rows: () int64. total: (C,) float64. outer: (C, C) float64, of which only the upper triangle is kept up to date.
    """

    rows: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def zeros(cls, channels: int) -> SecondMoments:
        return cls(
            rows=torch.zeros((), dtype=torch.long),
            total=torch.zeros(channels, dtype=torch.float64),
            outer=torch.zeros(channels, channels, dtype=torch.float64),
        )

    def add(self, x_NC: Tensor) -> None:
        """Take in the rows of ``x_NC``, of any floating dtype."""
        for chunk in x_NC.split(_CHUNK):
            chunk = chunk.double()
            self.total.add_(chunk.sum(0))
            for start in range(0, chunk.shape[1], _BLOCK):
                block = chunk[:, start : start + _BLOCK]
                self.outer[start : start + _BLOCK, start:].addmm_(block.mT, chunk[:, start:])
        self.rows.add_(len(x_NC))

    def __add__(self, other: SecondMoments) -> SecondMoments:
        """The moments of both sets of rows together."""
        return SecondMoments(self.rows + other.rows, self.total + other.total, self.outer + other.outer)

    @property
    def mean_square(self) -> Tensor:
        """(C,) mean of x^2 per channel, without centring."""
        return self.outer.diagonal() / self.rows

    @property
    def covariance(self) -> Tensor:
        """(C, C), divided by n - 1."""
        full = self.outer.triu() + self.outer.triu(1).mT
        return (full - torch.outer(self.total, self.total / self.rows)) / (self.rows - 1)
