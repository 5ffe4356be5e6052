"""Hugging Face's Swin Transformer: the attention of huggingface.py, in windows that are padded before they are shifted.

A window that is as large as its grid is not shifted. The model takes images of any size; the grid is that of the image
size in its configuration.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from mhprobe.backbones.huggingface import HuggingFace, pair
from mhprobe.heads import Block, HeadSite, Windows


class HuggingFaceSwin(HuggingFace):
    title = "Hugging Face transformers' Swin"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return type(model).__module__.startswith("transformers.") and type(model).__name__ == "SwinModel"

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        config = model.config
        patch = pair(config.patch_size)
        grid = tuple(-(-side // step) for side, step in zip(pair(config.image_size), patch, strict=True))
        number = 0
        for stage, layer in enumerate(model.encoder.layers):
            for i, block in enumerate(layer.blocks):
                name = f"encoder.layers.{stage}.blocks.{i}.attention"
                attention: Any = block.attention
                whole = min(grid) <= config.window_size
                window = min(grid) if whole else config.window_size
                shift = 0 if whole else block.shift_size
                yield HeadSite(
                    name=name,
                    stage=stage,
                    block=number,
                    num_heads=attention.num_attention_heads,
                    head_dim=attention.head_dim,
                    windows=Windows(grid=grid, size=(window, window), shift=(shift, shift), pad_first=True),  # type: ignore[arg-type]
                    grid=grid,  # type: ignore[arg-type]
                    pixels=(patch[0] * 2.0**stage, patch[1] * 2.0**stage),
                    pooled=True,
                )
                number += 1
            grid = tuple(-(-side // 2) for side in grid)

    @classmethod
    def blocks(cls, model: Any) -> Iterator[Block]:
        for stage, layer in enumerate(model.encoder.layers):
            for i in range(len(layer.blocks)):
                name = f"encoder.layers.{stage}.blocks.{i}"
                yield Block(name=name, stage=stage, middle=f"{name}.layernorm_after")

    @classmethod
    def layer_scale(cls, model: Any, site: HeadSite) -> Tensor | None:
        return None

    @classmethod
    def stem(cls, model: Any) -> nn.Module:
        return model.embeddings.patch_embeddings.projection
