"""Attention of heads in one call: from one token, or from all, laid over the grid of patches.

Windows are put back to where they are in the image.

Shapes: B images, H heads asked for.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.errors import UserError
from mhprobe.maps.attention import maps_of_heads
from mhprobe.recording.checks import check_batch
from mhprobe.recording.looks import Query, who_looks
from mhprobe.recording.measuring import pieces


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
    heads = [(number, within) for number, within, _ in layout]
    if head is not None:
        asked: Any = [head] if type(head) is int else head
        heads = [heads[flat] for flat in layout.indices(asked, "attention: head")]
    if not heads:
        raise UserError("attention: head: expected at least one head, got none.")
    grids = sorted({" x ".join(map(str, layout.sites[number].token_grid)) for number, _ in heads})
    if len(grids) > 1:
        raise UserError(f"attention: these heads have grids of {', '.join(grids)}; ask for those of one grid.")
    who = functools.partial(who_looks, query=query)
    few = pieces(len(images), layout)  # or the weights of all blocks would stand beside each other
    parts = [maps_of_heads(model, images[these], layout, heads, who, "attention") for these in few]
    return torch.cat([torch.stack(maps, 1) for maps in parts])
