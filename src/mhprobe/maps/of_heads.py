"""Where heads look, in one line: attention from one token, or from all, laid over the grid of patches.

Windows are put back to where they are in the image.

Shapes: B images, W windows, K places of a window, H heads asked for, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.recording.record import record

Query = str | tuple[int, int]


def attention(
    model: nn.Module,
    images: Tensor,
    head: int | Sequence[int] | Sequence[tuple[int, int]] | None = None,
    query: Query = "mean",
) -> Tensor:
    """(B, H, rows, columns) attention that the grid's patches get, larger means looked at more.

    model: of a supported family; gates are attached if it has none. images: (B, 3, height, width), normalised.
    head: which, as a flat index, a list of them or of (site, head) pairs; None for all. Their grids must be equal.
    query: who looks: the "class" token, the "registers" (the mean over them), a patch (row, column), or the "mean" over
        all patches. What goes to prefix tokens and to a window's padding is left out, so that a map adds up to less
        than 1. A patch in a window sees its window alone: the rest is 0.

    Raises UserError for a head that is not there, grids of several sizes, and a query that the model has no token for.
    """
    layout = attach(model).layout
    chosen = _chosen(layout, head)
    numbers = sorted({number for number, _ in chosen})
    sites = {number: layout.sites[number] for number in numbers}
    if len({site.token_grid for site in sites.values()}) > 1:
        grids = ", ".join(sorted({" x ".join(map(str, site.token_grid)) for site in sites.values()}))
        raise UserError(f"attention: these heads have grids of {grids}; ask for heads of one grid at a time.")
    asking = {number: _asking(site, query) for number, site in sites.items()}
    attn = record(model, images, needs={"attn"}).need("attn", "attention")
    maps = {number: _seen(attn[number], sites[number], asking[number]) for number in numbers}
    return torch.stack([maps[number][:, head] for number, head in chosen], 1)


def _chosen(layout: HeadLayout, head: Any) -> list[tuple[int, int]]:
    """(site, head) in the order in which they were asked for."""
    every = [(number, within) for number, within, _ in layout]
    if head is None:
        return every
    asked = [head] if isinstance(head, int) else list(head)
    if not asked:
        raise UserError("attention: head: expected at least one head, got none.")
    flat = [layout.flat(*each) if isinstance(each, tuple | list) else int(each) for each in asked]
    if wrong := [each for each in flat if not 0 <= each < layout.num_heads]:
        raise UserError(f"attention: head: the model has heads 0 to {layout.num_heads - 1}, got {wrong[0]}.")
    return [every[each] for each in flat]


def _asking(site: HeadSite, query: Query) -> Tensor:
    """(T,) the share of each token in who looks."""
    height, width = site.token_grid
    prefix, tokens = site.prefix_tokens, site.prefix_tokens + height * width
    asking = torch.zeros(tokens)
    if query == "mean":
        asking[prefix:] = 1
    elif query == "class" and site.class_token:
        asking[0] = 1
    elif query == "registers" and prefix > site.class_token:
        asking[int(site.class_token) : prefix] = 1
    elif isinstance(query, tuple) and len(query) == 2 and 0 <= query[0] < height and 0 <= query[1] < width:
        asking[prefix + query[0] * width + query[1]] = 1
    else:
        has = ["mean"] + ["class"] * site.class_token + ["registers"] * (prefix > site.class_token)
        raise UserError(
            f"attention: query: expected {', '.join(has)} or (row, column) in a grid of {height} x {width} for "
            f"{site.name}, got {query!r}."
        )
    return asking / asking.sum()


def _seen(attn: Tensor, site: HeadSite, asking: Tensor) -> Tensor:
    """(B, W, H, K, K) weights and (T,) who looks -> (B, H, rows, columns)."""
    places = site.places().to(attn.device)
    real = places >= 0
    share_WK = asking.to(attn)[places.clamp(min=0)] * real
    given = torch.einsum("bwhqk,wq->bwhk", attn, share_WK) * real[:, None]
    total = attn.new_zeros(len(attn), site.num_heads, len(asking))
    total.index_add_(2, places.clamp(min=0).flatten(), given.transpose(1, 2).flatten(2))
    return total[..., site.prefix_tokens :].unflatten(-1, site.token_grid)
