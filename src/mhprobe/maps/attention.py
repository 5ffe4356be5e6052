"""Attention of each head: the row of a class token that is read, or the mean over queries.

Windowed sites: a token is attended from its own window only, so the mean over all queries of the image is taken.

Shapes: B images, W windows, H heads, K places of a window, T tokens, h x w token grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mhprobe.heads import HeadSite
from mhprobe.maps.base import MapKind, as_grid, choose_block, layout_of, reads_class_token
from mhprobe.recording.record import record


class Attention(MapKind):
    """Maps "block <b> head <h>" of attention weights received, on the block's own token grid.

    blocks: which; -1 is the last.
    """

    per_head = True

    def __init__(self, blocks: Sequence[int] = (-1,)) -> None:
        self.blocks = list(blocks)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = layout_of(model)
        chosen = [number for block in self.blocks for number in choose_block(block, layout, "attention")]
        attn = record(model, images, needs={"attn"}).need("attn", "attention")
        maps: dict[str, Tensor] = {}
        for number in chosen:
            site = layout.sites[number]
            seen_BHhw = as_grid(received(attn[number], site), site)
            several = sum(other.block == site.block for other in layout.sites) > 1
            name = site.name if several else f"block {site.block}"
            maps |= {f"{name} head {h}": seen_BHhw[:, h] for h in range(site.num_heads)}
        return maps


def received(attn: Tensor, site: HeadSite) -> Tensor:
    """(B, W, H, K, K) -> (B, H, T) weight on each token, from the queries of ``maps.base.readout``."""
    places = site.places().to(attn.device)
    if reads_class_token(site):
        return attn[:, 0, :, 0]
    tokens = int(places.max()) + 1
    asking = (places >= site.prefix_tokens).to(attn.dtype)  # registers and padding do not ask
    share_BWHK = torch.einsum("bwhqk,wq->bwhk", attn, asking) / asking.sum()
    total = attn.new_zeros(len(attn), site.num_heads, tokens + 1)  # one more for padding, dropped
    where = torch.where(places >= 0, places, tokens).flatten()
    total.index_add_(2, where, share_BWHK.transpose(1, 2).flatten(2))
    return total[..., :tokens]
