"""Attention as one token x token matrix per head and image, whatever the windows, for oracles to loop over.

Read with a hook, one image at a time. Swin's windows are undone with arithmetic on rows and
columns, and which pairs may attend is read from timm's own mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Site:
    """maps (N, H, T, T), rows as softmaxed (Swin: padding left out); support[t] the tokens t may attend to.

    cells[t]: (row, column) of the token grid, None for prefix tokens. patch: input pixels per step,
    down and across.
    """

    maps: Tensor
    support: list[list[int]]
    cells: list[tuple[int, int] | None]
    grid: tuple[int, int]
    patch: tuple[float, float]
    has_class: bool

    @property
    def heads(self) -> int:
        return self.maps.shape[1]

    @property
    def patches(self) -> list[int]:
        return [t for t, cell in enumerate(self.cells) if cell is not None]

    def keys(self, query: int) -> list[int]:
        """Patch keys of a patch query."""
        return [k for k in self.support[query] if self.cells[k] is not None]

    def distance(self, a: int, b: int) -> float:
        (ya, xa), (yb, xb) = self.cells[a], self.cells[b]
        return math.hypot((ya - yb) * self.patch[0], (xa - xb) * self.patch[1])


def sites_of(model: nn.Module, images: Tensor, sites: list[tuple[str, int]]) -> list[Site]:
    kept: dict[str, list[Tensor]] = {name: [] for name, _ in sites}
    handles, fused = [], []
    for name, _ in sites:
        attention = model.get_submodule(name)
        fused.append((attention, attention.fused_attn))
        attention.fused_attn = False
        handles.append(
            attention.attn_drop.register_forward_pre_hook(
                lambda _, args, name=name: kept[name].append(args[0])
            )
        )
    with torch.no_grad():
        for image in images:
            model(image[None])
    for handle in handles:
        handle.remove()
    for attention, before in fused:
        attention.fused_attn = before
    return [dense(model, images, name, torch.stack(kept[name])) for name, _ in sites]


def dense(model: nn.Module, images: Tensor, name: str, rows: Tensor) -> Site:
    """rows: (N, windows, H, K, K) of one site."""
    size = images.shape[-2:]
    if not hasattr(model, "layers"):
        grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
        cells = [None] * prefix + [(y, x) for y in range(grid[0]) for x in range(grid[1])]
        everyone = list(range(len(cells)))
        return Site(
            rows[:, 0],
            [everyone] * len(cells),
            cells,
            grid,
            (size[0] / grid[0], size[1] / grid[1]),
            model.cls_token is not None,
        )
    block = model.get_submodule(name.rpartition(".")[0])
    (height, width), (win_h, win_w) = block.input_resolution, block.window_size
    across = -(-width // win_w)
    tokens = height * width
    maps = torch.zeros(len(rows), rows.shape[2], tokens, tokens, dtype=rows.dtype)
    support: list[list[int]] = [[] for _ in range(tokens)]
    for window in range(rows.shape[1]):
        token = []
        for place in range(win_h * win_w):
            y, x = (
                window // across * win_h + place // win_w,
                window % across * win_w + place % win_w,
            )
            inside = y < height and x < width
            token.append(
                (y + block.shift_size[0]) % height * width + (x + block.shift_size[1]) % width
                if inside
                else -1
            )
        for q, tq in enumerate(token):
            for k, tk in enumerate(token):
                allowed = block.attn_mask is None or block.attn_mask[window, q, k] == 0
                if tq >= 0 and tk >= 0 and allowed:
                    maps[:, :, tq, tk] = rows[:, window, :, q, k]
                    support[tq].append(tk)
    stage = int(name.split(".")[1])
    step = tuple(float(p * 2**stage) for p in model.patch_embed.patch_size)
    cells = [(t // width, t % width) for t in range(tokens)]
    return Site(maps, [sorted(keys) for keys in support], cells, (height, width), step, False)


def norms(model: nn.Module, images: Tensor, sites: list[tuple[str, int]]) -> list[Tensor]:
    """Per site (N, T) norms of the tokens that enter its block."""
    found = []
    for name, _ in sites:
        kept: list[Tensor] = []
        block = model.get_submodule(name.rpartition(".")[0])
        handle = block.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0]))
        with torch.no_grad():
            model(images)
        handle.remove()
        found.append(kept[0].flatten(1, -2).norm(dim=-1))
    return found
