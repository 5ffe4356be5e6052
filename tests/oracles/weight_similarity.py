"""Cosine of two heads' OV circuits from the C x C matrices, and the overlap of subspaces by principal angles."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) cosine of the OV circuits of the heads of one layer, NaN between layers."""
    total = sum(heads for _, heads in sites)
    result = torch.full((total, total), torch.nan, dtype=torch.float64)
    offset = 0
    for name, heads in sites:
        circuits = []
        for head in range(heads):
            matrices = matrices_of(model.get_submodule(name), head, heads)
            circuits.append(matrices["value"].T @ matrices["output"])
        for a in range(heads):
            for b in range(heads):
                result[offset + a, offset + b] = cosine(circuits[a], circuits[b])
        offset += heads
    return result


def matrices_of(attention: nn.Module, head: int, heads: int) -> dict[str, np.ndarray]:
    """query, key, value, output of one head, each (D, C)."""
    qkv = attention.qkv.weight.detach().numpy()
    channels = attention.proj.weight.shape[1]
    width = channels // heads
    own = slice(head * width, (head + 1) * width)
    query, key, value = (qkv[k * channels : (k + 1) * channels][own] for k in range(3))
    return {
        "query": query,
        "key": key,
        "value": value,
        "output": attention.proj.weight.detach().numpy()[:, own].T,
    }


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of all entries, 0 with a head that has no weights."""
    if not a.any() or not b.any():
        return 0.0
    return float(np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b))


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean squared cosine of the principal angles between two row spaces."""
    return float(np.mean(np.cos(scipy.linalg.subspace_angles(a.T, b.T)) ** 2))
