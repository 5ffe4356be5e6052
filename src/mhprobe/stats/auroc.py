"""How well a number tells two groups apart: the chance that one of the first group has the larger one.

Hanley & McNeil, 1982, Radiology 143:29. Half of it for ties, so that a number that is the same for all gives 0.5.
"""

from __future__ import annotations

from torch import Tensor


def auroc(inside: Tensor, outside: Tensor) -> float:
    """inside: (P,). outside: (N,). In [0, 1]; NaN where a group is empty. NaN numbers are left out of both.

    >>> import torch
    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))  # of 4 pairs 3 larger, 1 equal
    0.875
    """
    inside, outside = (each[~each.isnan()].double() for each in (inside, outside))
    if not len(inside) or not len(outside):
        return float("nan")
    above = inside[:, None] - outside[None]
    return float(((above > 0).double() + (above == 0).double() / 2).mean())
