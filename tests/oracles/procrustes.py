"""Orthogonal Procrustes of two heads from their raw rows: rotate one onto the other, and look what is left."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from oracles.pairs import within_layers


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) 1 - ||X - Y R||^2 / 2 of the heads of one layer, NaN between layers."""
    return within_layers(model, images, sites, similarity)


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    u, _, vt = np.linalg.svd(y.T @ x)
    rotation = u @ vt
    return float(1 - np.sum((x - y @ rotation) ** 2) / 2)
