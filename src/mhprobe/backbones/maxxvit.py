"""timm's MaxxVit: MaxViT, CoAtNet and what lies between. Windows of neighbours, then of tokens far apart; or all."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Parts, Trial, by_head, packed
from mhprobe.heads import Windows


def _parts(attention: Any, heads: int) -> Parts:
    return (by_head if attention.head_first else packed)(attention, heads)


def _windows(trial: Trial) -> Windows | None:
    size = getattr(trial.block, "partition_size", None)
    if size is None:
        return None  # all tokens
    first = type(trial.block).__name__.endswith("2d")
    grid = trial.grid_behind_channels if first else trial.grid
    far = trial.name.endswith("attn_grid") or not getattr(trial.block, "partition_block", True)
    return Windows(grid=grid, size=tuple(size), shift=(0, 0), strided=far)


_KIND = Kind(parts=_parts, windows=_windows)


class MaxxVit(Located):
    title = "timm MaxxVit (MaxViT, CoAtNet)"
    model = "timm.models.maxxvit.MaxxVit"
    kinds: ClassVar = {
        "timm.models.maxxvit.AttentionCl": _KIND,
        "timm.models.maxxvit.Attention2d": _KIND,
    }
