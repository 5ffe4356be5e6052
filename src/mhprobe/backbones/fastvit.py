"""timm's FastVit: convolutions; the larger ones attend in their last stage."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Kind, Located


class FastVit(Located):
    title = "timm FastVit"
    model = "timm.models.fastvit.FastVit"
    kinds: ClassVar = {"timm.models.fastvit.Attention": Kind()}
