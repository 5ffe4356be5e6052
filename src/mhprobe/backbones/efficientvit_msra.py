"""timm's EfficientViT of MSRA: a cascade of heads, each of which reads what the one before it has found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from mhprobe.backbones.located import Located
from mhprobe.errors import HeadsMixed
from mhprobe.heads import HeadSite


class EfficientVitMsra(Located):
    title = "timm EfficientViT (MSRA)"
    model = "timm.models.efficientvit_msra.EfficientVitMsra"
    kinds: ClassVar = {}

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        raise HeadsMixed(
            "EfficientVitMsra: its heads are a cascade: each adds to its input what the one before it has found, so "
            "what a head hands on is not its own. Not supported."
        )
