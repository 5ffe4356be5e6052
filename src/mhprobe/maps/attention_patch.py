"""Attention of each head from one token: a patch, the class token or a register.

Windowed sites: a token sees its own window only; outside it the map is 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadSite
from mhprobe.maps.attention import Attention


class AttentionPatch(Attention):
    """Maps "block <b> head <h>" of one query's attention weights, on the block's own token grid.

    blocks, heads: as in ``Attention``. query: "center" (the patch in the middle), (row, column) of the grid, "class" or
    "register" (the first). Raises UserError if the model has no such token, block or head.
    """

    kind = "attention_patch"

    def __init__(
        self, blocks: Sequence[int] = (-1,), query: str | Sequence[int] = "center", heads: Sequence[str] | None = None
    ) -> None:
        super().__init__(blocks, heads)
        self.query = query

    def who_looks(self, site: HeadSite) -> Tensor:
        """(T,) 1 for the query, as in ``HeadSite.places``. Raises UserError if the site has no such token."""
        (height, width), patch = site.token_grid, self.asking(site.token_grid)
        share = torch.zeros(site.prefix_tokens + height * width)
        if self.query == "class" and site.class_token:
            share[0] = 1
        elif self.query == "register" and site.prefix_tokens > site.class_token:
            share[int(site.class_token)] = 1
        elif patch is not None and 0 <= patch[0] < height and 0 <= patch[1] < width:
            share[site.prefix_tokens + patch[0] * width + patch[1]] = 1
        else:
            raise UserError(
                f"attention_patch.query: {site.name} has {'a' if site.class_token else 'no'} class token, "
                f"{site.prefix_tokens - site.class_token} registers and patches from [0, 0] to "
                f"[{height - 1}, {width - 1}], got {quoted(self.query)}."
            )
        return share

    def asking(self, grid: tuple[int, int]) -> tuple[int, int] | None:
        if self.query == "center":
            return grid[0] // 2, grid[1] // 2
        return None if isinstance(self.query, str) or len(self.query) != 2 else (int(self.query[0]), int(self.query[1]))
