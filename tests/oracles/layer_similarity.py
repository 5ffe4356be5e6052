"""Linear CKA of two layers from n x n kernels of their heads' outputs, windows put back by timm's own functions."""

from __future__ import annotations

import numpy as np
import torch
from timm.models.swin_transformer import window_reverse
from torch import Tensor, nn

from oracles.cka import similarity
from oracles.pairs import proj_input


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(S, S) linear CKA, NaN where layers differ in their number of rows."""
    rows = [raster(model, name, proj_input(model, images, name)) for name, _ in sites]
    result = torch.full((len(sites), len(sites)), torch.nan, dtype=torch.float64)
    for a in range(len(sites)):
        for b in range(len(sites)):
            if len(rows[a]) == len(rows[b]):
                result[a, b] = similarity(rows[a], rows[b])
    return result


def raster(model: nn.Module, name: str, rows: np.ndarray) -> np.ndarray:
    """Rows in image and raster order, as the block itself restores it behind its attention."""
    block = model.get_submodule(name.removesuffix(".attn"))
    if not hasattr(block, "window_size"):
        return rows
    (height, width), window = block.input_resolution, block.window_size
    windows = torch.tensor(rows).view(-1, *window, rows.shape[1])
    grid = window_reverse(windows, window, height, width)
    return torch.roll(grid, tuple(block.shift_size), (1, 2)).flatten(0, 2).numpy()
