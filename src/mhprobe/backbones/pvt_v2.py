"""timm's PyramidVisionTransformerV2 and Twins: keys on a coarser grid, in Twins after windows."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mhprobe.backbones.parts.located import COARSER, Kind, Located, apart, never


def full(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if keys are on the grid of the queries."""
    return attention.attn_drop if attention.sr is None else None


class PVTv2(Located):
    title = "timm PyramidVisionTransformerV2 (PVT v2)"
    model = "timm.models.pvt_v2.PyramidVisionTransformerV2"
    kinds: ClassVar = {"timm.models.pvt_v2.Attention": Kind(parts=apart("q", "kv"), weights=full, hidden=COARSER)}


class Twins(Located):
    title = "timm Twins"
    model = "timm.models.twins.Twins"
    kinds: ClassVar = {
        "timm.models.twins.LocallyGroupedAttn": Kind(
            weights=never, hidden="it cuts its windows, and puts them together again, inside itself"
        ),
        "timm.models.twins.GlobalSubSampleAttn": Kind(parts=apart("q", "kv"), weights=full, hidden=COARSER),
    }
