"""Area under the ROC curve: the chance that a number of the first group is larger than one of the second.

Hanley & McNeil, 1982, Radiology 143:29. Half of it for ties, so that a number that is the same for all gives 0.5.
"""

from torch import Tensor


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the area in [0, 1], .5 by chance; NaN where a group is empty.

    inside: (P,). outside: (N,). NaN numbers are left out of both.

    >>> import torch
    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0]))  # of 4 pairs 3 larger, 1 equal
    0.875
    """
    inside, outside = (each[~each.isnan()].double() for each in (inside, outside))
    if not len(inside) or not len(outside):
        return float("nan")
    above = inside[:, None] - outside[None]
    return float(((above > 0).double() + (above == 0).double() / 2).mean())
