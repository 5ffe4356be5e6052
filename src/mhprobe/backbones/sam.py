"""timm's VisionTransformerSAM: Segment Anything's encoder. It attends in windows, and in some blocks globally."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Reshaped, Trial
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows | None:
    side = trial.block.window_size
    return Windows(grid=trial.grid, size=(side, side), shift=(0, 0)) if side else None


class Sam(Located):
    title = "timm VisionTransformerSAM (SAM)"
    model = "timm.models.vision_transformer_sam.VisionTransformerSAM"
    kinds: ClassVar = {
        "timm.models.vision_transformer_sam.Attention": Kind(
            windows=_windows, weights=lambda attention: attention.attn_drop.seen
        )
    }

    @classmethod
    def prepare(cls, model: Any) -> None:
        for module in model.modules():
            if cls.kind(module) is not None and not isinstance(module.attn_drop, Reshaped):
                module.attn_drop = Reshaped(module.attn_drop, module.num_heads, "rows")
