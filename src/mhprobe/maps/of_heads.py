"""Attention of heads in one call: from one token, or from all, laid over the grid of patches.

Windows are put back to where they are in the image.

Shapes: B images, W windows, K places of a window, H heads asked for, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.recording.checks import check_batch
from mhprobe.recording.looks import Query, looked_at, who_looks
from mhprobe.recording.measuring import pieces
from mhprobe.recording.record import record


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

    Raises UserError for no tensor of images, a head that is not there or is named twice, a mask, grids of several
    sizes, and a query that the model has no token for.
    """
    layout = attach(model).layout.of("head")
    check_batch(model, images, None, any(site.line for site in layout.sites))
    chosen = _chosen(layout, head)
    numbers = sorted({number for number, _ in chosen})
    sites = {number: layout.sites[number] for number in numbers}
    if len({site.token_grid for site in sites.values()}) > 1:
        grids = ", ".join(sorted({" x ".join(map(str, site.token_grid)) for site in sites.values()}))
        raise UserError(f"attention: these heads have grids of {grids}; ask for heads of one grid at a time.")
    asking = {number: who_looks(site, query) for number, site in sites.items()}
    found = []
    for these in pieces(len(images), layout):  # or the weights of all blocks would stand beside each other
        attn = record(model, images[these], needs={"attn"}).need("attn", "attention")
        maps = {number: looked_at(attn[number], sites[number], asking[number]) for number in numbers}
        found.append(torch.stack([maps[number][:, head] for number, head in chosen], 1))
        del attn
    return torch.cat(found)


def _chosen(layout: HeadLayout, head: Any) -> list[tuple[int, int]]:
    """(site, head) in the order in which they were asked for."""
    every = [(number, within) for number, within, _ in layout]
    if head is None:
        return every
    flat = layout.indices([head] if type(head) is int else head, "attention: head")
    if not flat:
        raise UserError("attention: head: expected at least one head, got none.")
    return [every[each] for each in flat]
