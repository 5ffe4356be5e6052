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
