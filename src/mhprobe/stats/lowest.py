"""The k lowest of many scores, the same on every machine: of equal ones the lower index comes first.

Shapes: A scores.
"""

import torch
from torch import Tensor


def lowest(scores_A: Tensor, count: int) -> Tensor:
    """(A,) bool, True for the ``count`` lowest scores. For the highest give ``-scores_A``. NaN is above everything."""
    mask = torch.zeros_like(scores_A, dtype=torch.bool)
    mask[scores_A.argsort(stable=True)[:count]] = True
    return mask
