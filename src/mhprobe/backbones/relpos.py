"""timm's VisionTransformerRelPos: a ViT with biases for relative positions, of each block or shared by all."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.models.vision_transformer_relpos import (
    RelPosAttention,
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)
from torch import Tensor, nn

from mhprobe.backbones.parts.attention import of_fixed_width
from mhprobe.backbones.parts.tokens import Piece, Tokens


class RelPos(Tokens):
    title = "timm VisionTransformerRelPos (ViT with relative positions)"
    model, attention = VisionTransformerRelPos, (RelPosAttention,)
    middle: ClassVar = {RelPosBlock: "norm2", ResPostRelPosBlock: "mlp"}  # the latter normalises behind its parts

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, VisionTransformerRelPos)

    @classmethod
    def pieces(cls, model: Any) -> tuple[Piece, Sequence[Piece]]:
        def stem(images: Tensor) -> Tensor:
            x = model.patch_embed(images)
            return x if model.cls_token is None else torch.cat((model.cls_token.expand(len(x), -1, -1), x), dim=1)

        shared = None if model.shared_rel_pos is None else model.shared_rel_pos.get_bias()
        return stem, [functools.partial(block, shared_rel_pos=shared) for block in model.blocks]

    @classmethod
    def unprunable(cls, model: Any) -> str:
        return of_fixed_width(model.blocks[0].attn)
