"""timm's Visformer: convolutions, then attention."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, Located


class Visformer(Located):
    title = "timm Visformer"
    model = "timm.models.visformer.Visformer"
    kinds: ClassVar = {"timm.models.visformer.Attention": Kind()}
