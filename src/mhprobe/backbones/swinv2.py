"""timm's Swin Transformer V2: windows (see windowed.py), cosine attention, positions by a small network.

There is no fused attention. Each part of a block is normalised behind itself, so what a head writes is not yet what
enters the stream.
"""

import dataclasses
from typing import Any

from timm.models.swin_transformer_v2 import SwinTransformerV2, SwinTransformerV2Stage, WindowAttention
from torch import nn

from mhprobe.backbones.base import Seam
from mhprobe.backbones.parts.attention import of_fixed_width
from mhprobe.backbones.parts.windowed import Windowed
from mhprobe.heads import HeadSite


class SwinV2(Windowed):
    title = "timm SwinTransformerV2 (Swin V2)"
    model, stage, attention, middle = SwinTransformerV2, SwinTransformerV2Stage, WindowAttention, "mlp"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, SwinTransformerV2)

    @classmethod
    def seam(cls, model: Any, site: HeadSite) -> Seam:
        seam: Seam = super().seam(model, site)
        attention: Any = seam.attention
        return seam if site.kind == "neuron" else dataclasses.replace(seam, weights=attention.attn_drop)

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return of_fixed_width(model.layers[0].blocks[0].attn)
