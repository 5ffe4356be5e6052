"""timm's Swin Transformer v1: shifted windows, a ragged number of heads per stage.

WindowAttention concatenates its heads like a ViT, over rows that are image-major (image x window); ``Windows`` says
how to put them back in raster order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import nn

from mhprobe.backbones.base import Family
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite, Windows


class Swin(Family):
    title = "timm SwinTransformer (Swin v1)"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, SwinTransformer)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        number, patch = 0, model.patch_embed.patch_size
        for stage, layer in enumerate(model.layers):
            for i, block in enumerate(layer.blocks):
                name = f"layers.{stage}.blocks.{i}.attn"
                if type(block.attn) is not WindowAttention:
                    raise UserError(
                        f"{name} is a {type(block.attn).__name__}, expected timm's Swin v1 WindowAttention."
                    )
                yield HeadSite(
                    name=name,
                    stage=stage,
                    block=number,
                    num_heads=block.attn.num_heads,
                    head_dim=block.attn.proj.in_features // block.attn.num_heads,
                    windows=Windows(
                        grid=tuple(block.input_resolution), size=tuple(block.window_size), shift=tuple(block.shift_size)
                    ),
                    grid=tuple(block.input_resolution),
                    pixels=(patch[0] * 2.0**stage, patch[1] * 2.0**stage),  # merging halves the grid, rounding up
                )
                number += 1

    @staticmethod
    def blocks(model: Any) -> Iterator[Block]:
        for stage, layer in enumerate(model.layers):
            for i in range(len(layer.blocks)):
                name = f"layers.{stage}.blocks.{i}"
                yield Block(name=name, stage=stage, middle=f"{name}.norm2")
