"""timm's Swin Transformer v1: windows (see windowed.py) and a table of relative position biases, a column per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.models.swin_transformer import SwinTransformer, SwinTransformerStage, WindowAttention
from torch import nn

from mhprobe.backbones.parts import NoHeads, keep_channels
from mhprobe.backbones.windowed import Windowed
from mhprobe.heads import HeadSite


class Swin(Windowed):
    title = "timm SwinTransformer (Swin v1)"
    model, stage, attention, middle = SwinTransformer, SwinTransformerStage, WindowAttention, "norm2"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, SwinTransformer)

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        if not keep:
            model.set_submodule(site.name, NoHeads(attn.proj))
            return
        table = attn.relative_position_bias_table
        attn.relative_position_bias_table = nn.Parameter(table.detach()[:, list(keep)].clone(), table.requires_grad)
