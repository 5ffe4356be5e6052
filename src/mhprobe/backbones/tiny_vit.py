"""timm's TinyVit: windows."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial, by_head, never
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows:
    side = trial.block.window_size
    return Windows(grid=trial.grid, size=(side, side), shift=(0, 0))


class TinyViT(Located):
    title = "timm TinyVit"
    model = "timm.models.tiny_vit.TinyVit"
    kinds: ClassVar = {"timm.models.tiny_vit.Attention": Kind(parts=by_head, windows=_windows, weights=never)}
