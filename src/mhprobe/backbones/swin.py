"""timm's Swin Transformer v1: shifted windows, a ragged number of heads per stage.

WindowAttention concatenates its heads like a ViT, over rows that are image-major (image x window); ``Windows`` says
how to put them back in raster order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from timm.models.swin_transformer import SwinTransformer, SwinTransformerStage, WindowAttention
from torch import nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts import NoHeads, keep_channels
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
                if type(block.attn) is NoHeads:
                    number += 1
                    continue
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

    @staticmethod
    def segments(model: Any) -> Segments | None:
        kind = type(model)
        if (
            kind.forward is not SwinTransformer.forward
            or kind.forward_features is not SwinTransformer.forward_features
            or any(type(layer) is not SwinTransformerStage for layer in model.layers)
        ):
            return None
        return Segments(
            stem=model.patch_embed,
            # patch merging stands before a stage's first block
            blocks=tuple(
                nn.Sequential(layer.downsample, block) if i == 0 else block
                for layer in model.layers
                for i, block in enumerate(layer.blocks)
            ),
            tail=lambda x: model.forward_head(model.norm(x)),
        )

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        if not keep:
            model.set_submodule(site.name, NoHeads(attn.proj))
            return
        table = attn.relative_position_bias_table
        attn.relative_position_bias_table = nn.Parameter(table.detach()[:, list(keep)].clone(), table.requires_grad)
