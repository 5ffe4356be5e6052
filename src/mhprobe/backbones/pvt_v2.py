"""timm's PyramidVisionTransformerV2: keys on a coarser grid, but in the last stage."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mhprobe.backbones.located import COARSER, Kind, Located, apart


def full(attention: Any) -> nn.Module | None:
    """Where weights pass, if keys are on the grid of the queries."""
    return attention.attn_drop if attention.sr is None else None


class PVTv2(Located):
    title = "timm PyramidVisionTransformerV2 (PVT v2)"
    model = "timm.models.pvt_v2.PyramidVisionTransformerV2"
    kinds: ClassVar = {"timm.models.pvt_v2.Attention": Kind(parts=apart("q", "kv"), weights=full, hidden=COARSER)}
