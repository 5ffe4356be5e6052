"""Attention made by hand, for tests: a layout of one or two sites, and batches that hold what is given."""

from __future__ import annotations

import torch
from torch import Tensor

from mhprobe.heads import Block, HeadBatch, HeadLayout, HeadSite, Stream, Windows

CPU = torch.device("cpu")


def vit_layout(
    heads: int = 1,
    grid: tuple[int, int] = (4, 4),
    prefix: int = 1,
    layers: int = 1,
    pixels=(16.0, 16.0),
):
    sites = tuple(
        HeadSite(f"blocks.{i}.attn", 0, i, heads, 2, prefix, None, grid, pixels, prefix > 0)
        for i in range(layers)
    )
    return HeadLayout(
        sites, tuple(Block(f"blocks.{i}", 0, f"blocks.{i}.norm2") for i in range(layers))
    )


def swin_layout(
    heads: int = 1, grid=(8, 8), size=(4, 4), shift=(2, 2), pixels=(4.0, 4.0)
) -> HeadLayout:
    """One stage of two blocks, the second with shifted windows."""
    sites = tuple(
        HeadSite(
            f"layers.0.blocks.{i}.attn", 0, i, heads, 2, 0, Windows(grid, size, s), grid, pixels
        )
        for i, s in enumerate([(0, 0), shift])
    )
    return HeadLayout(
        sites,
        tuple(Block(f"layers.0.blocks.{i}", 0, f"layers.0.blocks.{i}.norm2") for i in range(2)),
    )


def batch_of(*attn: Tensor, **more) -> HeadBatch:
    """attn: per site (B, windows, H, K, K)."""
    count = len(attn[0])
    return HeadBatch(
        z=(),
        logits=torch.zeros(count, 2),
        valid=torch.ones(count, dtype=torch.bool),
        attn=tuple(attn),
        **more,
    )


def even(layout: HeadLayout, images: int = 2) -> list[Tensor]:
    """Attention spread evenly over everything a query may attend to."""
    maps = []
    for site in layout.sites:
        pairs = site.support().double()
        row = pairs / pairs.sum(-1, keepdim=True).clamp(min=1)
        maps.append(row[None, :, None].expand(images, -1, site.num_heads, -1, -1).clone())
    return maps


def looking(layout: HeadLayout, dy: int, dx: int, images: int = 2) -> list[Tensor]:
    """Heads whose patch queries put all weight on the key at (dy, dx), or on themselves where there is none."""
    maps = []
    for site in layout.sites:
        places, pairs = site.places(), site.support()
        width = site.token_grid[1]
        one = torch.zeros(pairs.shape, dtype=torch.float64)
        for w, window in enumerate(places.tolist()):
            where = {
                token: place for place, token in enumerate(window) if token >= site.prefix_tokens
            }
            for q, token in enumerate(window):
                target = q
                if token >= site.prefix_tokens:
                    y, x = divmod(token - site.prefix_tokens, width)
                    inside = 0 <= x + dx < width and 0 <= y + dy < site.token_grid[0]
                    k = (
                        where.get((y + dy) * width + x + dx + site.prefix_tokens)
                        if inside
                        else None
                    )
                    target = k if k is not None and pairs[w, q, k] else q
                one[w, q, target] = 1
        maps.append(one[None, :, None].expand(images, -1, site.num_heads, -1, -1).clone())
    return maps


def random_maps(
    layout: HeadLayout, images: int = 3, seed: int = 0, sharpness: float = 2.0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    maps = []
    for site in layout.sites:
        pairs = site.support()
        shape = (images, pairs.shape[0], site.num_heads, *pairs.shape[1:])
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        maps.append(logits.masked_fill(~pairs[:, None], -1e30).softmax(-1))
    return maps


def stream_of(
    layout: HeadLayout, images: int, loud: dict[int, float] | None = None
) -> tuple[Stream, ...]:
    """Tokens of norm 1, except ``loud``: token -> norm."""
    streams = []
    for site in layout.sites[: len(layout.blocks)]:
        tokens = torch.ones(images, site.prefix_tokens + site.token_grid[0] * site.token_grid[1], 1)
        for token, norm in (loud or {}).items():
            tokens[:, token] = norm
        streams.append(Stream(tokens, tokens, tokens))
    return tuple(streams)


def run(measure, *batches: HeadBatch) -> dict[str, Tensor]:
    for batch in batches:
        measure.update(batch)
    return measure.columns()
