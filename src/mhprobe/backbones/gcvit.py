"""timm's GlobalContextVit: attention in windows. In every second block the queries come from the whole image."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from mhprobe.backbones.parts.located import Kind, Located, Parts, Trial, packed, weight_of
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows:
    return Windows(grid=trial.grid, size=trial.block.window_size, shift=(0, 0))


def _parts(attention: Any, heads: int) -> Parts:
    if not attention.use_global:
        return packed(attention, heads)
    key, value = weight_of(attention.qkv).unflatten(0, (2, heads, -1))
    query: Tensor = key.new_zeros(key.shape)  # queries come from elsewhere: it has no weights for them
    return query, key, value


class GCViT(Located):
    title = "timm GlobalContextVit (GC ViT)"
    model = "timm.models.gcvit.GlobalContextVit"
    kinds: ClassVar = {"timm.models.gcvit.WindowAttentionGlobal": Kind(parts=_parts, windows=_windows)}
