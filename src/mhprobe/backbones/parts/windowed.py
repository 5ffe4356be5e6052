"""Families of timm's two Swin Transformers: shifted windows, a ragged number of heads per stage.

WindowAttention concatenates its heads like a ViT, over rows that are image-major (image x window); ``Windows`` says
how to put them back in raster order.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts.attention import NoHeads, other_forward, pixels
from mhprobe.backbones.parts.mlp import neurons
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite, Windows


class Windowed(Family):
    """A family of windowed models.

    model, stage, attention: timm's classes. middle: the part of a block that the stream enters after attention.
    """

    model: ClassVar[Any]
    stage: ClassVar[type[Any]]
    attention: ClassVar[type[Any]]
    middle: ClassVar[str]

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        for site, block in cls._places(model):
            name, attn = f"{site.name}.attn", block.attn
            if type(attn) is NoHeads:
                continue
            if type(attn) is not cls.attention:
                raise UserError(f"{name} is a {type(attn).__name__}, expected the WindowAttention of {cls.title}.")
            yield dataclasses.replace(
                site,
                name=name,
                num_heads=attn.num_heads,
                head_dim=attn.proj.in_features // attn.num_heads,
                windows=Windows(
                    grid=tuple(block.input_resolution), size=tuple(block.window_size), shift=tuple(block.shift_size)
                ),
            )

    @classmethod
    def neurons(cls, model: Any) -> Iterator[HeadSite]:
        for site, block in cls._places(model):  # an MLP sees its tokens in raster order
            yield from neurons(block.mlp, dataclasses.replace(site, name=f"{site.name}.mlp"))

    @classmethod
    def _places(cls, model: Any) -> Iterator[tuple[HeadSite, Any]]:
        """Each block with a site that says where it stands, without units."""
        patch, blocks = pixels(model.patch_embed.img_size, model.patch_embed.grid_size), list(cls.blocks(model))
        for number, about in enumerate(blocks):
            block = model.get_submodule(about.name)
            yield (
                HeadSite(
                    name=about.name,
                    stage=about.stage,
                    block=number,
                    num_heads=0,
                    head_dim=1,
                    grid=tuple(block.input_resolution),
                    pixels=(patch[0] * 2.0**about.stage, patch[1] * 2.0**about.stage),  # merging halves, rounding up
                ),
                block,
            )

    @classmethod
    def blocks(cls, model: Any) -> Iterator[Block]:
        for stage, layer in enumerate(model.layers):
            for i in range(len(layer.blocks)):
                name = f"layers.{stage}.blocks.{i}"
                yield Block(name=name, stage=stage, middle=f"{name}.{cls.middle}")

    @classmethod
    def segments(cls, model: Any) -> Segments | None:
        if other_forward(model, cls.model) or any(type(layer) is not cls.stage for layer in model.layers):
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
