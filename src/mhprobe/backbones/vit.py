"""timm's VisionTransformer: ViT, DeiT, DeiT3, DINOv2 and others with registers, CLIP and SigLIP towers, hybrids.

layers.Attention concatenates its heads, head 0 first, and projects; nothing stands between heads and projection
unless ``scale_norm`` is on, which mixes them. Attention pooling behind the blocks is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from timm.layers import Attention
from timm.models.vision_transformer import Block, ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts import NoHeads, keep_channels, no_norm_between, other_forward, token_site
from mhprobe.errors import UserError
from mhprobe.heads import Block as Residual
from mhprobe.heads import HeadSite


class ViT(Family):
    title = "timm VisionTransformer (ViT, DeiT, DeiT3, DINOv2, CLIP, SigLIP)"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            where = f"blocks.{number}"
            if type(block) not in (Block, ResPostBlock, ParallelThingsBlock):
                raise UserError(
                    f"{where} is a {type(block).__name__}: its heads and its MLP share one projection, or its heads "
                    f"are combined before it, so no slice of channels belongs to one head. Use a model of plain blocks."
                )
            names = [f"attns.{i}.attn" for i in range(len(block.attns))] if hasattr(block, "attns") else ["attn"]
            for name in names:
                attn = block.get_submodule(name)
                if type(attn) is not Attention:
                    raise UserError(
                        f"{where}.{name} is a {type(attn).__name__}, expected timm.layers.Attention: its heads are "
                        f"combined before the projection, so none can be gated alone."
                    )
                no_norm_between(f"{where}.{name}", attn)
                if attn.num_heads > 0:  # else all were removed
                    yield token_site(model, number, f"{where}.{name}", attn)

    @staticmethod
    def blocks(model: Any) -> Iterator[Residual]:
        # ParallelThingsBlock names its parts ffns; ResPostBlock normalises behind them
        middle = {ParallelThingsBlock: "ffns.0", ResPostBlock: "mlp", Block: "norm2"}
        for number, block in enumerate(model.blocks):
            yield Residual(name=f"blocks.{number}", stage=0, middle=f"blocks.{number}.{middle[type(block)]}")

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        attn.attn_dim = len(keep) * site.head_dim

    @classmethod
    def replace_empty(cls, model: Any) -> None:
        for name, module in list(model.named_modules()):
            if isinstance(module, Attention) and module.num_heads == 0:  # ONNX cannot reshape to zero heads
                model.set_submodule(name, NoHeads(module.proj))

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if other_forward(model, VisionTransformer):
            return None
        return Segments(
            stem=lambda images: model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images)))),
            blocks=tuple(model.blocks),
            tail=lambda x: model.forward_head(model.norm(x)),
        )
