"""A floor under every layer, and a target: which masks may follow a mask, and when a path has arrived.

Shapes: A heads, L layers, M masks. In every mask True means: head off.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout

ROUNDING = 1e-9  # of shares that are sums over heads

Cost = Callable[[Tensor], Tensor]
"""(M, A) bool masks -> (M,) float64, what is left. It never grows as heads are masked."""


@dataclass(frozen=True)
class Target:
    """A target at which a curve stops.

    unit: heads, flops or latency. value: at most so much shall be left, by ``cost``.
    """

    unit: str
    value: float
    cost: Cost

    def left(self, mask: Tensor) -> float:
        """Return the cost of what the (A,) mask leaves."""
        return float(self.cost(mask[None])[0])


@dataclass(frozen=True)
class Limits:
    """Limits of a path.

    min_heads_per_layer: of every layer so many heads stay. target: the point to stop at, None for the end.
    """

    layout: HeadLayout
    min_heads_per_layer: int = 0
    target: Target | None = None

    def reached(self, off: Tensor) -> bool:
        """Return True if the (A,) mask meets the target."""
        return self.target is not None and self.target.left(off) <= self.target.value + ROUNDING

    def permits(self, off: Tensor, after: Tensor) -> Tensor:
        """(M,) bool: which of the (M, A) masks ``after`` may follow the (A,) mask ``off``."""
        left_ML = _heads_left(self.layout, after)
        return ((left_ML >= self.min_heads_per_layer) | (left_ML == _heads_left(self.layout, off))).all(-1)


def _heads_left(layout: HeadLayout, masks: Tensor) -> Tensor:
    """(..., A) masks -> (..., L)."""
    return torch.stack([part.sum(-1) for part in layout.split(~masks)], -1)
