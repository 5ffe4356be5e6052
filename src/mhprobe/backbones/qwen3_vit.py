"""timm's Qwen3 vision towers, alone and with a classifier."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import Located
from mhprobe.backbones.naflexvit import TOKENS


class Qwen3(Located):
    title = "timm Qwen3 ViT"
    model = "timm.models.qwen3_vit.Qwen3VitEncoder"
    kinds: ClassVar = TOKENS


class Qwen3Classifier(Qwen3):
    model = "timm.models.qwen3_vit.Qwen3VitClassifier"
