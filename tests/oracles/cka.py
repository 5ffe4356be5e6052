"""Linear CKA of two heads from their n x n kernels."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from oracles.pairs import within_layers


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) linear CKA of the heads of one layer, NaN between layers."""
    return within_layers(model, images, sites, similarity)


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    k, l = centred(x @ x.T), centred(y @ y.T)
    return float(np.sum(k * l) / np.sqrt(np.sum(k * k) * np.sum(l * l)))


def centred(kernel: np.ndarray) -> np.ndarray:
    """H K H with H = I - 11'/n, written out: rows and columns add up to 0."""
    return kernel - kernel.mean(0) - kernel.mean(1, keepdims=True) + kernel.mean()


def debiased(x: np.ndarray, y: np.ndarray) -> float:
    """The same with Song et al.'s equation 4, on kernels that are not centred."""
    k, l = x @ x.T, y @ y.T
    return hsic(k, l) / float(np.sqrt(hsic(k, k) * hsic(l, l)))


def hsic(k: np.ndarray, l: np.ndarray) -> float:
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))
    one = np.ones(n)
    product = np.trace(k @ l)
    sums = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    chains = 2 / (n - 2) * (one @ k @ l @ one)
    return float((product + sums - chains) / (n * (n - 3)))
