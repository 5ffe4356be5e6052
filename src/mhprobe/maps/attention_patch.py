"""Attention of each head from one token: a patch, the class token or a register.

Windowed sites: a token sees its own window only; outside it the map is 0.

Shapes: B images, W windows, H heads, K places of a window, T tokens, h x w token grid.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadSite
from mhprobe.maps.base import MapKind, as_grid, chosen_heads, head_name, layout_of
from mhprobe.recording.record import record


class AttentionPatch(MapKind):
    """Maps "block <b> head <h>" of one query's attention weights, on the block's own token grid.

    blocks, heads: as in ``Attention``. query: "center" (the patch in the middle), (row, column) of the grid, "class" or
    "register" (the first). UserError where the model has no such token, block or head.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (-1,),
        query: str | Sequence[int] = "center",
        heads: Sequence[str] | None = None,
    ) -> None:
        self.blocks, self.query, self.heads = list(blocks), query, heads
        self.per_head = heads is None

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = layout_of(model)
        chosen = chosen_heads(layout, self.blocks, self.heads, "attention_patch")
        tokens = {number: token_of(self.query, layout.sites[number]) for number, _ in chosen}
        attn = record(model, images, needs={"attn"}).need("attn", "attention_patch")
        seen = {
            number: as_grid(of_query(attn[number], layout.sites[number], token), layout.sites[number])
            for number, token in tokens.items()
        }
        return {head_name(layout, number, head): seen[number][:, head] for number, head in chosen}

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


def of_query(attn: Tensor, site: HeadSite, token: int) -> Tensor:
    """(B, W, H, K, K) -> (B, H, T) the weights of one query; in windows 0 outside its own."""
    places = site.places().to(attn.device)
    window, asking = (places == token).nonzero()[0].tolist()
    there = places[window] >= 0
    seen = attn.new_zeros(len(attn), site.num_heads, int(places.max()) + 1)
    seen[:, :, places[window][there]] = attn[:, window, :, asking][:, :, there]
    return seen
