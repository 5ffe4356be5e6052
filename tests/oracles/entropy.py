"""-sum p ln p, row by row, with SciPy."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images and queries of the entropy of a row (SciPy makes it sum to 1), in nats."""
    means = []
    for site in sites_of(model, images, sites):
        for h in range(site.heads):
            rows = [
                stats.entropy(site.maps[:, h, t, keys].numpy(), axis=-1)
                for t, keys in enumerate(site.support)
            ]
            means.append(np.mean(rows))
    return torch.tensor(means, dtype=torch.float64)
