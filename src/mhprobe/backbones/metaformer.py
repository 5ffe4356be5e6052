"""timm's MetaFormer: CAFormer's last stages attend; the other stages, and ConvFormer, have no heads."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, Located


class MetaFormer(Located):
    title = "timm MetaFormer (CAFormer)"
    model = "timm.models.metaformer.MetaFormer"
    kinds: ClassVar = {"timm.models.metaformer.Attention": Kind()}
