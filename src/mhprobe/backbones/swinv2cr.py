"""timm's SwinTransformerV2Cr: shifted windows as in Swin, cosine attention, norms behind the parts of a block."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows:
    return Windows(grid=trial.grid, size=trial.block.window_size, shift=trial.block.shift_size)


class SwinV2Cr(Located):
    title = "timm SwinTransformerV2Cr (Swin V2 of another hand)"
    model = "timm.models.swin_transformer_v2_cr.SwinTransformerV2Cr"
    kinds: ClassVar = {"timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention": Kind(windows=_windows)}
