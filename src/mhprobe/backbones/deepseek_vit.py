"""timm's DeepSeek vision towers, alone and with a classifier."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Located
from mhprobe.backbones.naflexvit import TOKENS


class DeepSeek(Located):
    title = "timm DeepSeek ViT"
    model = "timm.models.deepseek_vit.DeepseekVitEncoder"
    kinds: ClassVar = TOKENS


class DeepSeekClassifier(DeepSeek):
    model = "timm.models.deepseek_vit.DeepseekVitClassifier"
