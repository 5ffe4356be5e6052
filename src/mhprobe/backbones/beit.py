"""timm's Beit: BEiT v1 and v2.

Attention concatenates its heads like a ViT. Queries and values have biases of their own, so ``qkv`` is never called:
its weight is used by hand. Positions are biases per head, a table for each block or one for all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from timm.models.beit import Attention, Block
from timm.models.beit import Beit as Model
from torch import Tensor, nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts import of_fixed_width, other_forward, token_site
from mhprobe.errors import UserError
from mhprobe.heads import Block as Residual
from mhprobe.heads import HeadSite


class Beit(Family):
    title = "timm Beit (BEiT v1 and v2)"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, Model)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            name = f"blocks.{number}.attn"
            if type(block) is not Block or type(block.attn) is not Attention:
                raise UserError(f"{name} is a {type(block.attn).__name__}, expected the Attention of timm's Beit.")
            yield token_site(model, number, name, block.attn)

    @staticmethod
    def blocks(model: Any) -> Iterator[Residual]:
        for number in range(len(model.blocks)):
            yield Residual(name=f"blocks.{number}", stage=0, middle=f"blocks.{number}.norm2")

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if other_forward(model, Model):
            return None

        def stem(images: Tensor) -> Tensor:
            x = model.patch_embed(images)
            x = torch.cat((model.cls_token.expand(len(x), -1, -1), x), dim=1)
            return model.pos_drop(x if model.pos_embed is None else x + model.pos_embed)

        shared = None if model.rel_pos_bias is None else model.rel_pos_bias()
        return Segments(
            stem=stem,
            blocks=tuple(functools.partial(block, shared_rel_pos_bias=shared) for block in model.blocks),
            tail=lambda x: model.forward_head(model.norm(x)),
        )

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return of_fixed_width(model.blocks[0].attn)
