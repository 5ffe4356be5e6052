"""timm's VisionTransformerRelPos: a ViT with biases for relative positions, of each block or shared by all."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from timm.models.vision_transformer_relpos import (
    RelPosAttention,
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)
from torch import Tensor, nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts import of_fixed_width, other_forward, token_site
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite

_MIDDLE = {RelPosBlock: "norm2", ResPostRelPosBlock: "mlp"}  # the latter normalises behind its parts


class RelPos(Family):
    title = "timm VisionTransformerRelPos (ViT with relative positions)"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, VisionTransformerRelPos)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            name = f"blocks.{number}.attn"
            if type(block) not in _MIDDLE or type(block.attn) is not RelPosAttention:
                raise UserError(
                    f"{name} is a {type(block.attn).__name__} in a {type(block).__name__}, expected timm's "
                    f"RelPosAttention: nobody has looked where its heads are."
                )
            yield token_site(model, number, name, block.attn)

    @staticmethod
    def blocks(model: Any) -> Iterator[Block]:
        for number, block in enumerate(model.blocks):
            yield Block(name=f"blocks.{number}", stage=0, middle=f"blocks.{number}.{_MIDDLE[type(block)]}")

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if other_forward(model, VisionTransformerRelPos):
            return None

        def stem(images: Tensor) -> Tensor:
            x = model.patch_embed(images)
            return x if model.cls_token is None else torch.cat((model.cls_token.expand(len(x), -1, -1), x), dim=1)

        shared = None if model.shared_rel_pos is None else model.shared_rel_pos.get_bias()
        return Segments(
            stem=stem,
            blocks=tuple(functools.partial(block, shared_rel_pos=shared) for block in model.blocks),
            tail=lambda x: model.forward_head(model.norm(x)),
        )

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return of_fixed_width(model.blocks[0].attn)
