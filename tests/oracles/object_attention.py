"""Where every patch looks most, image by image, and what it finds there."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor, nn


def value(
    model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]], objects: Tensor
) -> Tensor:
    """(A,) mean over images of the share of patches whose argmax key is on an object."""
    shares = []
    for n in range(len(images)):
        row = []
        for name, heads in sites:
            looks, shown = looked_at(model, images[n], name), patches(model, objects[n], name)
            for h in range(heads):
                on = [sum(shown[key] > 0 for key in keys) / len(keys) for keys in looks[h].values()]
                row.append(sum(on) / len(on))
        shares.append(row)
    return torch.tensor(shares, dtype=torch.float64).mean(0)


def looked_at(
    model: nn.Module, image: Tensor, name: str, skip_self: bool = False
) -> list[dict[tuple, list[tuple]]]:
    """Per head {query (row, column): the keys it attends to most}, both patches of the grid."""
    seen = {}
    attention = model.get_submodule(name)
    fused, attention.fused_attn = attention.fused_attn, False
    handle = attention.attn_drop.register_forward_pre_hook(
        lambda _, args: seen.update(attn=args[0])
    )
    with torch.no_grad():
        model(image[None])
    handle.remove()
    attention.fused_attn = fused
    attn = seen["attn"].tolist()  # (windows, heads, queries, keys)
    where = places(model, name)
    found: list[dict[tuple, list[tuple]]] = []
    for h in range(len(attn[0])):
        looks = {}
        for w, window in enumerate(where):
            for q, (query, query_region) in window.items():
                keys = [
                    (attn[w][h][q][k], key)
                    for k, (key, region) in window.items()
                    if region == query_region and not (skip_self and key == query)
                ]
                if keys:
                    top = max(keys)[0]
                    looks[query] = [key for weight, key in keys if weight == top]
        found.append(looks)
    return found


def places(model: nn.Module, name: str) -> list[dict[int, tuple[tuple, tuple]]]:
    """Per window {place: ((row, column) of the patch there, region)}, by carrying coordinates along."""
    if hasattr(model, "blocks"):
        height, width = model.patch_embed.grid_size
        prefix = model.num_prefix_tokens
        return [{prefix + r * width + c: ((r, c), ()) for r in range(height) for c in range(width)}]
    block = model.get_submodule(name.rpartition(".")[0])
    height, width = block.input_resolution
    (wh, ww), (sh, sw) = block.window_size, block.shift_size
    tall, wide = math.ceil(height / wh) * wh, math.ceil(width / ww) * ww
    windows: dict[tuple, dict[int, tuple[tuple, tuple]]] = {}
    for y in range(tall):
        for x in range(wide):
            # the patch that a roll by -shift of the unpadded image, then padding, puts at (y, x)
            window, place = (y // wh, x // ww), (y % wh) * ww + x % ww
            windows.setdefault(window, {})
            if y < height and x < width:
                patch = ((y + sh) % height, (x + sw) % width)
                region = tuple(
                    0 if not s else int(p >= t - w) + int(p >= t - s)
                    for p, t, w, s in ((y, tall, wh, sh), (x, wide, ww, sw))
                )
                windows[window][place] = (patch, region)
    return [windows[key] for key in sorted(windows)]


def patches(model: nn.Module, objects: Tensor, name: str) -> dict[tuple, int]:
    """{(row, column): what most pixels of the patch show, the lowest number of equals}."""
    if hasattr(model, "blocks"):
        (height, width), size = model.patch_embed.grid_size, model.patch_embed.patch_size[0]
    else:
        height, width = model.get_submodule(name.rpartition(".")[0]).input_resolution
        size = model.patch_embed.patch_size[0] * 2 ** int(name.split(".")[1])
    shown = {}
    for r in range(height):
        for c in range(width):
            cell = objects[r * size : (r + 1) * size, c * size : (c + 1) * size].flatten().tolist()
            counts = Counter(cell)
            shown[r, c] = min(counts, key=lambda kind: (-counts[kind], kind))
    return shown
