"""Attention of each head: the row of a class token that is read, or the mean over queries.

Windowed sites: a token is attended from its own window only, so the mean over all queries of the image is taken.

Shapes: B images, W windows, H heads, K places of a window, T tokens, h x w token grid.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mhprobe.heads import HeadSite
from mhprobe.maps.base import MapKind, as_grid, chosen_heads, head_name, layout_of, reads_class_token
from mhprobe.recording.record import record


class Attention(MapKind):
    """Maps "block <b> head <h>" of attention weights received, on the block's own token grid.

    blocks: which; -1 is the last. heads: only these, by name ("5/11" is head 11 of block 5), side by side for all
    images; then ``blocks`` is not looked at. UserError for a block or a head that is not there.
    """

    def __init__(self, blocks: Sequence[int] = (-1,), heads: Sequence[str] | None = None) -> None:
        self.blocks, self.heads = list(blocks), heads
        self.per_head = heads is None

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = layout_of(model)
        chosen = chosen_heads(layout, self.blocks, self.heads, "attention")
        attn = record(model, images, needs={"attn"}).need("attn", "attention")
        seen = {
            number: as_grid(received(attn[number], layout.sites[number]), layout.sites[number]) for number, _ in chosen
        }
        return {head_name(layout, number, head): seen[number][:, head] for number, head in chosen}


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
