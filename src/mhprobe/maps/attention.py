"""Attention of each head: the row of a class token that is read, or the mean over queries.

Windowed sites: a token is attended from its own window only, so the mean over all queries of the image is taken.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn

from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.maps.base import MapKind, chosen_heads, head_name, layout_of, reads_class_token
from mhprobe.recording.looks import looked_at, who_looks
from mhprobe.recording.record import record


class Attention(MapKind):
    """Maps "block <b> head <h>" of attention weights received, on the block's own token grid.

    blocks: which; -1 is the last. heads: only these, by name ("5/11" is head 11 of block 5), side by side for all
    images; then ``blocks`` is not looked at. UserError for a block or a head that is not there.
    """

    kind: ClassVar[str] = "attention"

    def __init__(self, blocks: Sequence[int] = (-1,), heads: Sequence[str] | None = None) -> None:
        self.blocks, self.heads = list(blocks), heads
        self.per_head = heads is None

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = layout_of(model)
        chosen = chosen_heads(layout, self.blocks, self.heads, self.kind)
        maps = maps_of_heads(model, images, layout, chosen, self.who_looks, self.kind)
        return {head_name(layout, *head): of_head for head, of_head in zip(chosen, maps, strict=True)}

    def who_looks(self, site: HeadSite) -> Tensor:
        """(T,) weight of each token as a query; sums to 1."""
        return readers(site)


def readers(site: HeadSite) -> Tensor:
    """(T,) the weights of the queries of ``maps.base.readout``."""
    return who_looks(site, "class" if reads_class_token(site) else "mean")


def maps_of_heads(
    model: nn.Module,
    images: Tensor,
    layout: HeadLayout,
    heads: Sequence[tuple[int, int]],
    who: Callable[[HeadSite], Tensor],
    asker: str,
) -> list[Tensor]:
    """(B, h, w) attention that patches get from each head, a pair of (site number, head). who: gives (T,) queries."""
    queries = {number: who(layout.sites[number]) for number, _ in heads}  # refuses before anything is recorded
    attn = record(model, images, needs={"attn"}).need("attn", asker)
    maps = {number: looked_at(attn[number], layout.sites[number], share) for number, share in queries.items()}
    return [maps[number][:, head] for number, head in heads]
