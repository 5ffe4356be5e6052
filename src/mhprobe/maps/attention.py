"""Attention of each head: the row of a class token that is read, or the mean over queries.

Where attention has windows (Swin), a patch attends only within its own, so the map is the mean over
all queries.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.maps.base import MapKind, chosen_heads, gated_layout, reads_class_token
from mhprobe.recording.checks import check_batch
from mhprobe.recording.looks import Query, looks, who_looks

MOST = 32  # images that go through the network at a time


class Attention(MapKind):
    """Maps "block <b> head <h>" of attention weights received, on the block's own token grid.

    blocks: numbers of blocks; -1 is the last. heads: instead of blocks, names of heads ("5/11" is
    head 11 of block 5), side by side for all images. Raises UserError for a block or a head that is
    not there.
    """

    kind: ClassVar[str] = "attention"
    label = "attention"

    def __init__(self, blocks: Sequence[int] = (-1,), heads: Sequence[str] | None = None) -> None:
        self.blocks, self.heads = list(blocks), heads
        self.per_head = heads is None

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        layout = gated_layout(model)
        chosen = chosen_heads(layout, self.blocks, self.heads, self.kind)
        maps = maps_of_heads(model, images, layout, chosen, self.who_looks)
        return {
            layout.name_of(layout.flat(*head)): of_head
            for head, of_head in zip(chosen, maps, strict=True)
        }

    def who_looks(self, site: HeadSite) -> Tensor:
        """(T,) weight of each token as a query, as of ``maps.base.readout``; sums to 1."""
        return who_looks(site, "class" if reads_class_token(site) else "mean")


def maps_of_heads(
    model: nn.Module,
    images: Tensor,
    layout: HeadLayout,
    heads: Sequence[tuple[int, int]],
    who: Callable[[HeadSite], Tensor],
) -> list[Tensor]:
    """(B, h, w) attention that patches get from each head, a pair of (site number, head).

    who: gives (T,) queries.
    """
    queries = {
        number: who(layout.sites[number]) for number, _ in heads
    }  # refuses before anything is recorded
    asked_of = HeadLayout(
        tuple(layout.sites[number] for number in queries)
    )  # others may have no weights to look at
    received = looks(model, images, asked_of, [*queries.values()])
    maps = dict(zip(queries, received, strict=True))
    return [maps[number][:, head] for number, head in heads]


def attention(
    model: nn.Module,
    images: Tensor,
    head: int | Sequence[int] | Sequence[tuple[int, int]] | None = None,
    query: Query = "mean",
) -> Tensor:
    """(B, H, rows, columns) attention that the grid's patches get, larger means looked at more.

    model: of a supported family; gates are attached if it has none. images: (B, 3, height, width),
    normalised.
    head: a flat index, a list of them or of (site, head) pairs; None for all. Their grids must be
    equal.
    query: the "class" token, the first "register" or all "registers" (their mean), a patch (row,
        column), a list of patches (their mean), or the "mean" over all patches. Attention to prefix
        tokens and padding is left out, so a map sums to less than 1. Outside a patch's window the
        map is 0.

    The model runs as it is, fused attention too, in about the memory of its forward pass: only the
    rows of the queries are computed, block by block (``recording.rows``).

    Raises UserError for images that are no tensor, an unknown or repeated head, a mask, grids of
    several sizes, a query that the model has no token for, and weights that are NaN.
    """
    layout = gated_layout(model)
    check_batch(model, images, None, layout)
    heads = [(number, within) for number, within, _ in layout]
    if head is not None:
        heads = [
            heads[flat]
            for flat in layout.indices([head] if isinstance(head, int) else head, "attention: head")
        ]
    if not heads:
        raise UserError("attention: head: expected at least one head, got none.")
    grids = sorted({" x ".join(map(str, layout.sites[number].token_grid)) for number, _ in heads})
    if len(grids) > 1:
        raise UserError(
            f"attention: these heads have grids of {', '.join(grids)}; ask for those of one grid."
        )
    who = functools.partial(who_looks, query=query)
    parts = [maps_of_heads(model, some, layout, heads, who) for some in images.split(MOST)]
    return torch.cat([torch.stack(maps, 1) for maps in parts])
