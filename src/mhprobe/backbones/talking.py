"""timm's models whose heads talk: their weights are mixed across heads behind the softmax, so none has its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from mhprobe.backbones.located import Located
from mhprobe.errors import HeadsMixed
from mhprobe.heads import HeadSite


class Cait(Located):
    title = "timm models with talking heads"
    model = "timm.models.cait.Cait"
    kinds: ClassVar = {}

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        raise HeadsMixed(
            f"{type(model).__name__}: its heads talk: behind the softmax their attention weights are mixed across "
            f"heads, so what a head hands on is not its own. Not supported."
        )


class EfficientFormerV2(Cait):
    model = "timm.models.efficientformer_v2.EfficientFormerV2"
