"""CCA of two heads from their raw rows by QR (Björck & Golub 1973): cosines between the spaces of their columns."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from oracles.pairs import within_layers


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean canonical correlation of the heads of one layer, NaN between layers."""
    return within_layers(model, images, sites, similarity)


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(correlations(x, y)))


def correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Canonical correlations of two sets of columns over the same rows, in falling order."""
    bases = [np.linalg.qr(columns - columns.mean(axis=0))[0] for columns in (x, y)]
    return np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
