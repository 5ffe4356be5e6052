"""timm's CrossVit: two ViTs side by side. The attention from one's class token to the other is not gated."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.naflexvit import TOKENS
from mhprobe.backbones.parts.located import Located, Trial


class CrossVit(Located):
    title = "timm CrossVit"
    model = "timm.models.crossvit.CrossVit"
    kinds: ClassVar = TOKENS
    aside = ("timm.models.crossvit.CrossAttention", "timm.models.crossvit.CrossAttentionBlock")

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return 1
