"""SVCCA of two heads from their raw rows: SVD of each, then CCA of what was kept, as its authors do it, in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean canonical correlation of the heads of one layer, NaN between layers.

    Rows need not be in raster order: within a layer, windows shuffle the rows of all heads alike.
    """
    total = sum(heads for _, heads in sites)
    result = torch.full((total, total), torch.nan, dtype=torch.float64)
    offset = 0
    for name, heads in sites:
        rows = proj_input(model, images, name)
        head = np.split(rows, heads, axis=1)
        for a in range(heads):
            for b in range(heads):
                result[offset + a, offset + b] = similarity(head[a], head[b])
        offset += heads
    return result


def proj_input(model: nn.Module, images: Tensor, name: str) -> np.ndarray:
    """(rows, channels) that enter the output projection of one attention module."""
    kept = []
    handle = model.get_submodule(name).proj.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.no_grad():
        model(images)
    handle.remove()
    return kept[0].flatten(0, 1).numpy()


def similarity(x: np.ndarray, y: np.ndarray, variance: float = 0.99) -> float:
    """Sum of the canonical correlations over the smaller number of kept directions."""
    return float(np.mean(correlations(x, y, variance)))


def correlations(x: np.ndarray, y: np.ndarray, variance: float = 0.99) -> np.ndarray:
    """Canonical correlations of two sets of columns over the same rows, in falling order."""
    x, y = keep(x, variance), keep(y, variance)
    joint = np.cov(x, y, rowvar=False)
    m = x.shape[1]
    cross = inverse_root(joint[:m, :m]) @ joint[:m, m:] @ inverse_root(joint[m:, m:])
    return np.linalg.svd(cross, compute_uv=False)


def keep(x: np.ndarray, variance: float) -> np.ndarray:
    """The leading principal components that together explain at least this share of the variance."""
    x = x - x.mean(axis=0)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    explained = np.cumsum(s**2) / np.sum(s**2)
    m = 1
    while explained[m - 1] < variance:
        m += 1
    return u[:, :m] * s[:m]


def inverse_root(covariance: np.ndarray) -> np.ndarray:
    """covariance^(-1/2)."""
    eigenvalue, vector = np.linalg.eigh(np.atleast_2d(covariance))
    return vector / np.sqrt(eigenvalue) @ vector.T
