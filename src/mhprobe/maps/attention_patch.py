"""Attention of each head from one token: a patch, the class token or a register.

Windowed sites: a token sees its own window only; outside it the map is 0.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadSite
from mhprobe.maps.attention import Attention


class AttentionPatch(Attention):
    """Maps "block <b> head <h>" of one query's attention weights, on the block's own token grid.

    blocks, heads: as in ``Attention``. query: "center" (the patch in the middle), (row, column) of the grid, "class" or
    "register" (the first). UserError where the model has no such token, block or head.
    """

    kind = "attention_patch"

    def __init__(
        self,
        blocks: Sequence[int] = (-1,),
        query: str | Sequence[int] = "center",
        heads: Sequence[str] | None = None,
    ) -> None:
        super().__init__(blocks, heads)
        self.query = query

    def who_looks(self, site: HeadSite) -> Tensor:
        """(T,) 1 for the token that asks."""
        share = torch.zeros(site.prefix_tokens + math.prod(site.token_grid))
        share[token_of(self.query, site)] = 1
        return share

    def asking(self, grid: tuple[int, int]) -> tuple[int, int] | None:
        at = patch_of(self.query, grid)
        return None if isinstance(at, str) else (int(at[0]), int(at[1]))


def token_of(query: str | Sequence[int], site: HeadSite) -> int:
    """The token that asks, numbered as in ``HeadSite.places``. UserError where the site has none of that name."""
    height, width = site.token_grid
    if query == "class" and site.class_token:
        return 0
    if query == "register" and site.prefix_tokens > site.class_token:
        return int(site.class_token)
    at = patch_of(query, site.token_grid)
    if isinstance(at, str) or len(at) != 2 or not (0 <= at[0] < height and 0 <= at[1] < width):
        raise UserError(
            f"attention_patch.query: {site.name} has {'a' if site.class_token else 'no'} class token, "
            f"{site.prefix_tokens - site.class_token} registers and patches from [0, 0] to "
            f"[{height - 1}, {width - 1}], got {quoted(query)}."
        )
    return site.prefix_tokens + int(at[0]) * width + int(at[1])


def patch_of(query: str | Sequence[int], grid: tuple[int, int]) -> str | Sequence[int]:
    """The (row, column) of the query, or the name of a token that is no patch."""
    return (grid[0] // 2, grid[1] // 2) if query == "center" else query
