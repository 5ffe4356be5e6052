"""SVCCA of the outputs of whole blocks, caught by hooks; finer grids averaged cell by cell with NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from oracles.svcca import similarity


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(S, S) mean canonical correlation, NaN for blocks of other stages that are not both the last of theirs."""
    names = [name.removesuffix(".attn") for name, _ in sites]
    maps = outputs(model, images, names)
    stages = [int(name.split(".")[1]) if name.startswith("layers.") else 0 for name in names]
    last = {stage: number for number, stage in enumerate(stages)}
    coarsest = min((grid.shape[1:3] for grid in maps), key=np.prod)
    result = torch.full((len(sites), len(sites)), torch.nan, dtype=torch.float64)
    for a in range(len(sites)):
        for b in range(len(sites)):
            if a == b:
                result[a, b] = 1
            elif stages[a] == stages[b]:
                result[a, b] = similarity(flat(maps[a]), flat(maps[b]))
            elif last[stages[a]] == a and last[stages[b]] == b:
                result[a, b] = similarity(
                    flat(pooled(maps[a], coarsest)), flat(pooled(maps[b], coarsest))
                )
    return result


def outputs(model: nn.Module, images: Tensor, names: list[str]) -> list[np.ndarray]:
    """(B, h, w, C) of every named block, without prefix tokens."""
    caught: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: caught.update({name: out})
        )
        for name in names
    ]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    found = []
    for name in names:
        out = caught[name].double().numpy()
        if out.ndim == 3:
            side = model.patch_embed.grid_size
            out = out[:, model.num_prefix_tokens :].reshape(len(out), *side, -1)
        found.append(out)
    return found


def pooled(maps: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The mean over equal cells."""
    images, height, width, channels = maps.shape
    tall, wide = height // grid[0], width // grid[1]
    return maps.reshape(images, grid[0], tall, grid[1], wide, channels).mean((2, 4))


def flat(maps: np.ndarray) -> np.ndarray:
    return maps.reshape(-1, maps.shape[-1])
