"""timm's CSATv2: convolutions over frequencies; its last stages attend."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, Located


class CSATv2(Located):
    title = "timm CSATv2"
    model = "timm.models.csatv2.CSATv2"
    kinds: ClassVar = {"timm.layers.attention.Attention": Kind()}
