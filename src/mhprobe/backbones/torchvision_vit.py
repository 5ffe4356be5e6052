"""torchvision's VisionTransformer: vit_b_16 and its like. See multihead.py for its attention."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from mhprobe.backbones.base import Segments
from mhprobe.backbones.parts.multihead import MultiHead, self_attention
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class TorchvisionViT(MultiHead):
    title = "torchvision VisionTransformer"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        side = model.image_size // model.patch_size
        for number, (block, layer) in enumerate(model.encoder.layers.named_children()):
            name = f"encoder.layers.{block}.self_attention"
            if type(layer) is not EncoderBlock:
                raise UserError(f"{name}: its block is a {type(layer).__name__}, expected torchvision's EncoderBlock.")
            attention = self_attention(name, layer.self_attention)
            yield HeadSite(
                name=name,
                stage=0,
                block=number,
                num_heads=attention.num_heads,
                head_dim=attention.head_dim,
                prefix_tokens=1,
                grid=(side, side),
                pixels=(float(model.patch_size),) * 2,
                class_token=True,
            )

    @staticmethod
    def blocks(model: Any) -> Iterator[Block]:
        for block, _ in model.encoder.layers.named_children():
            yield Block(name=f"encoder.layers.{block}", stage=0, middle=f"encoder.layers.{block}.ln_2")

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if type(model).forward is not VisionTransformer.forward:
            return None

        def stem(images: Tensor) -> Tensor:
            x = model._process_input(images)
            x = torch.cat([model.class_token.expand(len(x), -1, -1), x], dim=1)
            return model.encoder.dropout(x + model.encoder.pos_embedding)

        return Segments(
            stem=stem, blocks=tuple(model.encoder.layers), tail=lambda x: model.heads(model.encoder.ln(x)[:, 0])
        )

    @classmethod
    def stem(cls, model: Any) -> nn.Module:
        return model.conv_proj

    @classmethod
    def patches(cls, embedded: Tensor) -> Tensor:
        return embedded.flatten(2).mT

    @classmethod
    def input_spec(cls, model: Any) -> dict[str, Any]:
        return {"size": (model.image_size,) * 2, **IMAGENET}

    @classmethod
    def classifier(cls, model: Any) -> nn.Module:
        return model.heads
