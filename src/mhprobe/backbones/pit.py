"""timm's PoolingVisionTransformer: a ViT in three stages."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.naflexvit import TOKENS
from mhprobe.backbones.parts.located import Located, Trial


class PiT(Located):
    title = "timm PoolingVisionTransformer (PiT)"
    model = "timm.models.pit.PoolingVisionTransformer"
    kinds: ClassVar = TOKENS

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return model.cls_token.shape[1]  # one, or with a distillation token two
