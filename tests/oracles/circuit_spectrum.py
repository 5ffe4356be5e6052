"""Singular value decompositions of the C x C matrices themselves, by NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from oracles.weight_similarity import matrices_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) weighted mean cosine of the singular vectors of each head's W_Q^T W_K."""
    found = []
    for name, heads in sites:
        for head in range(heads):
            own = matrices_of(model.get_submodule(name), head, heads)
            singular, cosine = modes(own["query"].T @ own["key"], len(own["query"]))
            found.append(np.sum(singular * cosine) / np.sum(singular))
    return torch.tensor(found, dtype=torch.float64)


def modes(matrix: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(D,) singular values and cosines of left with right vectors; the matrix is C x C of rank ``width``."""
    u, s, vt = np.linalg.svd(matrix)
    cosine = [float(u[:, n] @ vt[n]) for n in range(width)]
    return s[:width], np.array(cosine)
