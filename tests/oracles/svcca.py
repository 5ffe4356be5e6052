"""SVCCA of two heads from their raw rows: SVD of each, then CCA of what was kept, as its authors do it, in NumPy."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from oracles.pairs import within_layers


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean canonical correlation of the heads of one layer, NaN between layers."""
    return within_layers(model, images, sites, similarity)


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
