"""timm's NextViT: convolutions with groups, which are no attention, then attention with keys on a coarser grid."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.located import COARSER, Kind, Located, apart
from mhprobe.backbones.pvt_v2 import full


class NextViT(Located):
    title = "timm NextViT"
    model = "timm.models.nextvit.NextViT"
    kinds: ClassVar = {
        "timm.models.nextvit.EfficientAttention": Kind(parts=apart("q", "k", "v"), weights=full, hidden=COARSER)
    }
