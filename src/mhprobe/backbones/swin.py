"""timm's two Swin Transformers: shifted windows, a ragged number of heads per stage.

WindowAttention concatenates its heads over rows (image x window); ``Windows`` puts them back in
raster order.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from timm.models import swin_transformer, swin_transformer_v2
from torch import nn

from mhprobe.backbones.base import DirectPath, Family, Segments, blocks_in
from mhprobe.backbones.parts import units
from mhprobe.backbones.parts.narrow import Biased, NoHeads
from mhprobe.backbones.parts.wrappers import called, kind_of, unwrapped
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite, Windows


class Windowed(Family):
    """A family of windowed models. model, stage, attention: timm's classes.

    middle: part of a block after attention.
    """

    stage: ClassVar[type[Any]]
    attention: ClassVar[tuple[type, ...]]
    middle: ClassVar[str]
    slice_heads = staticmethod(units.slice_heads)

    def sites(self, model: Any) -> Iterator[HeadSite]:
        for site, block in self._places(model, "attn"):
            attn, kind = unwrapped(block.attn), type(unwrapped(block.attn))
            if kind is NoHeads:
                continue
            if kind_of(attn, self.attention) is None:
                raise UserError(
                    called(site.name, attn, self.attention)
                    or f"{site.name} is a {kind.__name__}, expected the WindowAttention of "
                    f"{self.title}."
                )
            yield dataclasses.replace(
                site,
                num_heads=attn.num_heads,
                head_dim=units.width_of(site.name, attn.proj, attn.num_heads),
                windows=Windows(
                    grid=site.token_grid,
                    size=tuple(block.window_size),
                    shift=tuple(block.shift_size),
                ),
            )

    def neurons(self, model: Any) -> Iterator[HeadSite]:
        for site, block in self._places(model, "mlp"):  # an MLP sees its tokens in raster order
            yield from units.neurons(block.mlp, site)

    def _places(self, model: Any, part: str) -> Iterator[tuple[HeadSite, Any]]:
        """Each block with the site of its ``part``, without units.

        Grids are rounded up, as merging does.
        """
        patches = model.patch_embed
        down, across = units.pixels(patches.img_size, patches.grid_size)
        for number, about in enumerate(self.blocks(model)):
            name, scale = f"{about.name}.{part}", 2**about.stage
            grid = tuple(-(-side // scale) for side in patches.grid_size)
            site = HeadSite(
                name, about.stage, number, 0, 1, grid=grid, pixels=(down * scale, across * scale)
            )
            yield site, model.get_submodule(about.name)

    def blocks(self, model: Any) -> Iterator[Block]:
        for stage in range(len(model.layers)):
            yield from blocks_in(model, f"layers.{stage}.blocks", lambda _: self.middle, stage)

    def segments(self, model: Any) -> Segments | None:
        if self._other_forward(model):
            return None
        blocks = (  # patch merging is before a stage's first block
            nn.Sequential(layer.downsample, block) if i == 0 else block
            for layer in model.layers
            for i, block in enumerate(layer.blocks)
        )
        return Segments(
            model.patch_embed, tuple(blocks), tail=lambda x: model.forward_head(model.norm(x))
        )

    def _other_forward(self, model: Any) -> bool:
        return units.other_forward(model, self.model) or any(
            type(layer) is not self.stage for layer in model.layers
        )


class Swin(Windowed):
    """A table holds the biases of relative positions, a column per head."""

    title = "timm SwinTransformer (Swin v1)"
    model, middle = swin_transformer.SwinTransformer, "norm2"
    stage, attention = swin_transformer.SwinTransformerStage, (swin_transformer.WindowAttention,)

    def direct_path(self, model: Any) -> DirectPath:
        if self._other_forward(model):
            raise UserError(
                f"logit_attribution: {type(model).__name__} has its own forward, not timm's Swin's."
            )
        units.linear_pool(model.head.global_pool.pool_type)
        merged = {layer.blocks[0]: layer.downsample for layer in model.layers[1:]}
        head, grids = model.head, tuple(site.token_grid for site, _ in self._places(model, "attn"))
        return DirectPath(
            between=tuple(merged.get(block) for layer in model.layers for block in layer.blocks),
            norm=model.norm,
            pool=lambda x: head.global_pool(x.unflatten(1, grids[-1])),
            head=lambda x: head.flatten(head.fc(head.drop(x))),
            grids=grids,
        )


class SwinV2(Windowed):
    """Cosine attention that is never fused, positions by a small network, and norms behind the parts of a block."""

    title = "timm SwinTransformerV2 (Swin V2)"
    model, middle = swin_transformer_v2.SwinTransformerV2, "mlp"
    stage, attention = (
        swin_transformer_v2.SwinTransformerV2Stage,
        (swin_transformer_v2.WindowAttention, Biased),
    )
