"""timm's EfficientFormer: convolutions, then attention in the last blocks."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, Located, by_head, never


class EfficientFormer(Located):
    title = "timm EfficientFormer"
    model = "timm.models.efficientformer.EfficientFormer"
    kinds: ClassVar = {"timm.models.efficientformer.Attention": Kind(parts=by_head, weights=never)}
