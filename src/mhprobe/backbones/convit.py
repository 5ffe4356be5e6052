"""timm's ConVit: attention gated between content and position, then a ViT's."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Trial, apart


class ConViT(Located):
    title = "timm ConVit"
    model = "timm.models.convit.ConVit"
    kinds: ClassVar = {"timm.models.convit.GPSA": Kind(parts=apart("qk", "v")), "timm.models.convit.MHSA": Kind()}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        tokens = trial.entered[1]  # the class token comes in behind the first blocks
        return tokens - math.isqrt(tokens) ** 2
