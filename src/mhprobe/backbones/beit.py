"""timm's Beit: BEiT v1 and v2.

Queries and values have biases of their own, so Beit never calls ``qkv`` and multiplies by its weight instead. Positions
are biases per head: a table for each block, or one for all.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from timm.models.beit import Attention, Block
from timm.models.beit import Beit as Model
from torch import Tensor, nn

from mhprobe.backbones.parts.attention import of_fixed_width
from mhprobe.backbones.parts.tokens import Piece, Tokens


class Beit(Tokens):
    title = "timm Beit (BEiT v1 and v2)"
    model, attention, middle = Model, (Attention,), {Block: "norm2"}

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, Model)

    @classmethod
    def pieces(cls, model: Any) -> tuple[Piece, Sequence[Piece]]:
        def stem(images: Tensor) -> Tensor:
            x = model.patch_embed(images)
            x = torch.cat((model.cls_token.expand(len(x), -1, -1), x), dim=1)
            return model.pos_drop(x if model.pos_embed is None else x + model.pos_embed)

        shared = None if model.rel_pos_bias is None else model.rel_pos_bias()
        return stem, [functools.partial(block, shared_rel_pos_bias=shared) for block in model.blocks]

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return of_fixed_width(model.blocks[0].attn)
