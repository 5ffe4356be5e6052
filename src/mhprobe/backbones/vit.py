"""timm's VisionTransformer: ViT, DeiT, DeiT3, DINOv2 and others with registers, CLIP and SigLIP towers, hybrids.

Nothing stands between heads and projection unless ``scale_norm`` is on, which mixes them. Attention pooling behind the
blocks is left alone.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from timm.layers import Attention
from timm.models.vision_transformer import Block, ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import nn

from mhprobe.backbones.base import DirectPath
from mhprobe.backbones.parts.attention import keep_channels, linear_pool, other_forward
from mhprobe.backbones.parts.tokens import Piece, Tokens
from mhprobe.errors import HeadsMixed, UserError
from mhprobe.heads import HeadSite


class ViT(Tokens):
    title = "timm VisionTransformer (ViT, DeiT, DeiT3, DINOv2, CLIP, SigLIP)"
    model, attention = VisionTransformer, (Attention,)
    # ParallelThingsBlock names its parts ffns; ResPostBlock normalises behind them
    middle: ClassVar = {ParallelThingsBlock: "ffns.0", ResPostBlock: "mlp", Block: "norm2"}

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    @classmethod
    def inside(cls, block: Any) -> Sequence[str]:
        if type(block) not in cls.middle:
            return ("",)
        return [f"attns.{i}.attn" for i in range(len(block.attns))] if hasattr(block, "attns") else ["attn"]

    @classmethod
    def mlps(cls, block: Any) -> Sequence[str]:
        return [f"ffns.{i}.mlp" for i in range(len(block.ffns))] if hasattr(block, "ffns") else ["mlp"]

    @classmethod
    def strange(cls, name: str, attention: nn.Module, block: nn.Module) -> UserError:
        if attention is block:
            return HeadsMixed(
                f"{name.rstrip('.')} is a {type(block).__name__}: its heads and its MLP share one projection, or its "
                f"heads are combined before it, so no slice of channels belongs to one head. Use a model of plain "
                f"blocks."
            )
        return HeadsMixed(
            f"{name} is a {type(attention).__name__}, expected timm.layers.Attention: its heads are combined before "
            f"the projection, so none can be gated alone."
        )

    @classmethod
    def pieces(cls, model: Any) -> tuple[Piece, Sequence[Piece]]:
        return lambda images: model.norm_pre(
            model.patch_drop(model._pos_embed(model.patch_embed(images)))
        ), model.blocks

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        attn.attn_dim = len(keep) * site.head_dim
        if not keep:  # torch 2.11's fused product of no heads ends the process (SIGFPE)
            attn.fused_attn = False

    @classmethod
    def direct_path(cls, model: Any) -> DirectPath:
        odd = next((type(block).__name__ for block in model.blocks if type(block) is ResPostBlock), None)
        if odd is not None or other_forward(model, VisionTransformer):
            reason = (
                f"a norm stands behind the heads of a {odd}" if odd else f"{type(model).__name__} has its own forward"
            )
            raise UserError(f"logit_attribution: what a head writes cannot be followed to the logits: {reason}.")
        linear_pool(model.global_pool)
        return DirectPath(
            between=(None,) * len(model.blocks),
            norm=model.norm,
            pool=model.pool,
            head=lambda x: model.head(model.head_drop(model.fc_norm(x))),
        )
