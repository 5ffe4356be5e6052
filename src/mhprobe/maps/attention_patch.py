"""Attention of each head from one token: a patch, the class token or a register.

Windowed sites: a token sees its own window only; outside it the map is 0.
"""

from collections.abc import Sequence

from torch import Tensor

from mhprobe.heads import HeadSite
from mhprobe.maps.attention import Attention
from mhprobe.recording.looks import who_looks


class AttentionPatch(Attention):
    """Maps "block <b> head <h>" of one query's attention weights, on the block's own token grid.

    blocks, heads: as in ``Attention``. query: "center" (the patch in the middle), or another of
    ``mhprobe.attention``. Raises UserError if the model has no such token, block or head.
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
        """(T,) weight of each token as a query. Raises UserError if the site has no such token."""
        return who_looks(site, self.asking(site.token_grid) or self.query, "attention_patch.query")

    def asking(self, grid: tuple[int, int]) -> tuple[int, int] | None:
        if self.query == "center":
            return grid[0] // 2, grid[1] // 2
        return (
            None
            if isinstance(self.query, str) or len(self.query) != 2
            else (int(self.query[0]), int(self.query[1]))
        )
