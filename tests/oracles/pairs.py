"""All pairs of heads of a layer, one after the other, from their raw rows: for the oracles of similarities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


def within_layers(
    model: nn.Module,
    images: Tensor,
    sites: list[tuple[str, int]],
    similarity: Callable[[np.ndarray, np.ndarray], float],
) -> Tensor:
    """(A, A) similarity of the heads of one layer, NaN between layers.

    Rows need not be in raster order: within a layer, windows shuffle the rows of all heads alike.
    """
    total = sum(heads for _, heads in sites)
    result = torch.full((total, total), torch.nan, dtype=torch.float64)
    offset = 0
    for name, heads in sites:
        head = np.split(proj_input(model, images, name), heads, axis=1)
        for a in range(heads):
            for b in range(heads):
                result[offset + a, offset + b] = similarity(head[a], head[b])
        offset += heads
    return result


def proj_input(model: nn.Module, images: Tensor, name: str) -> np.ndarray:
    """(rows, channels) that enter the output projection of one attention module."""
    kept = []
    handle = model.get_submodule(name).proj.register_forward_pre_hook(
        lambda _, args: kept.append(args[0])
    )
    with torch.no_grad():
        model(images)
    handle.remove()
    return kept[0].flatten(0, 1).numpy()
