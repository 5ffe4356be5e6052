"""Layouts without a model behind them."""

from __future__ import annotations

from collections.abc import Sequence

from mhprobe.heads import HeadLayout, HeadSite


def layout_of(*heads: int, stages: Sequence[int] | None = None, head_dim: int = 4) -> HeadLayout:
    """A layer per number of heads. stages: of the layers; all in one by default."""
    of = stages or (0,) * len(heads)
    return HeadLayout(
        tuple(
            HeadSite(f"blocks.{i}.attn", stage, i, count, head_dim)
            for i, (count, stage) in enumerate(zip(heads, of, strict=True))
        )
    )


def side_by_side(blocks: int = 2, heads: int = 2) -> HeadLayout:
    """Two attentions side by side in every block, as in timm's ParallelThingsBlock, and one in a last block."""
    pairs = [
        (block, f"blocks.{block}.attns.{side}.attn") for block in range(blocks) for side in range(2)
    ]
    names = [*pairs, (blocks, f"blocks.{blocks}.attn")]
    return HeadLayout(tuple(HeadSite(name, 0, block, heads, 4) for block, name in names))


LAYOUTS = {  # of networks that figures are drawn of
    "vit": layout_of(*[12] * 6),
    "vit_base": layout_of(*[12] * 12),
    "digits": layout_of(*[6] * 4),
    "swin": layout_of(3, 3, 6, 6, 12, 12, 12, 12, stages=[0, 0, 1, 1, 2, 2, 2, 2]),
    "swin_base": layout_of(
        *[4] * 2, *[8] * 2, *[16] * 18, *[32] * 2, stages=[0] * 2 + [1] * 2 + [2] * 18 + [3] * 2
    ),
    "one layer": layout_of(4),
    "one head": layout_of(1),
}
