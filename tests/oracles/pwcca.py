"""PWCCA of two heads from their raw rows: the variates themselves, and their inner products with each channel."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from oracles.pairs import within_layers


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) projection-weighted correlation of the heads of one layer, by the channels of the row's head."""
    return within_layers(model, images, sites, similarity)


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    """sum_i alpha_i rho_i / sum_i alpha_i with alpha_i = sum_j |<h_i, x_j>|, h_i the variates of x."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    basis_x, basis_y = np.linalg.qr(x)[0], np.linalg.qr(y)[0]
    u, rho, _ = np.linalg.svd(basis_x.T @ basis_y)
    weighted = total = 0.0
    for i in range(min(x.shape[1], y.shape[1])):
        variate = basis_x @ u[:, i]
        alpha = sum(abs(variate @ x[:, j]) for j in range(x.shape[1]))
        weighted += alpha * rho[i]
        total += alpha
    return weighted / total
