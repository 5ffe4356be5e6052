"""timm's MultiScaleVit: MViTv2, whose queries, keys and values are pooled."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import COARSER, Kind, Located, Trial, never


class MViTv2(Located):
    title = "timm MultiScaleVit (MViTv2)"
    model = "timm.models.mvitv2.MultiScaleVit"
    kinds: ClassVar = {
        "timm.models.mvitv2.MultiScaleAttention": Kind(weights=never, hidden=COARSER),
    }

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return model.num_prefix_tokens
