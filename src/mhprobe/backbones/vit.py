"""timm's token models: ``blocks`` one after the other, all patches attending to each other.

VisionTransformer (ViT, DeiT, DeiT3, DINOv2, CLIP and SigLIP towers, hybrids), Eva (EVA, EVA-02,
DINOv3, Perception Encoder, rotary positions), Beit, VisionTransformerRelPos. Attention pooling
behind the blocks gets no gates.
"""

import functools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from timm.layers import Attention, AttentionRope
from timm.models import beit, eva, vision_transformer_relpos
from timm.models.vision_transformer import Block as ViTBlock
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from mhprobe.backbones.base import DirectPath, Family, Segments, blocks_in
from mhprobe.backbones.parts import units
from mhprobe.backbones.parts.narrow import Biased, NoHeads, Rotary
from mhprobe.backbones.parts.wrappers import called, kind_of, unwrapped
from mhprobe.errors import HeadsMixed, UserError
from mhprobe.heads import Block, HeadSite

Piece = Callable[[Tensor], Tensor]


class Tokens(Family):
    """A family of token models. model, attention: timm's classes.

    middle: part after attention, by class of block.
    """

    attention: ClassVar[tuple[type, ...]]
    middle: ClassVar[Mapping[type, str]]
    slice_heads = staticmethod(units.slice_heads)

    def sites(self, model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            if kind_of(block, self.middle) is None:
                reason = called(f"blocks.{number}", block, self.middle)
                raise UserError(reason) if reason else self.strange(f"blocks.{number}", block)
            for name, attention in _named("attn", number, unwrapped(block)):
                if kind_of(attention, (*self.attention, NoHeads)) is None:
                    reason = called(name, attention, self.attention)
                    raise UserError(reason) if reason else self.strange(name, attention)
                if type(attention) is not NoHeads:
                    heads = attention.num_heads
                    units.no_norm_between(name, attention)
                    yield _site(
                        model, number, name, heads, units.width_of(name, attention.proj, heads)
                    )

    def neurons(self, model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            for name, mlp in _named("mlp", number, unwrapped(block)):
                yield from units.neurons(mlp, _site(model, number, name, 0, 1))

    def strange(self, name: str, module: nn.Module) -> UserError:
        """The error for a block or attention of another class."""
        expected = " or ".join(kind.__name__ for kind in (*self.middle, *self.attention))
        return UserError(
            f"{name} is a {type(module).__name__}, expected the {expected} of timm's "
            f"{self.model.__name__}: mhprobe "
            f"does not know where its heads are."
        )

    def blocks(self, model: Any) -> Iterator[Block]:
        return blocks_in(model, "blocks", lambda block: self.middle[kind_of(block, self.middle)])

    def segments(self, model: Any) -> Segments | None:
        if units.other_forward(model, self.model):
            return None
        stem, blocks = self.pieces(model)
        return Segments(
            stem=stem, blocks=tuple(blocks), tail=lambda x: model.forward_head(model.norm(x))
        )

    @abstractmethod
    def pieces(self, model: Any) -> tuple[Piece, Sequence[Piece]]:
        """The model's own forward up to its first block, and its blocks."""


def _named(part: str, number: int, block: nn.Module) -> Iterator[tuple[str, Any]]:
    """The modules of a block that are called ``part``: one, or several side by side (attns.0.attn, attns.1.attn)."""
    for path, module in block.named_modules():
        if re.fullmatch(rf"(\w+\.\d+\.)?{part}", path):
            yield f"blocks.{number}.{path}", module


def _site(model: Any, block: int, name: str, count: int, width: int) -> HeadSite:
    grid = model.patch_embed.grid_size
    return HeadSite(
        *(name, 0, block, count, width, model.num_prefix_tokens),
        grid=grid,
        pixels=units.pixels(model.patch_embed.img_size, grid),
        class_token=model.cls_token is not None,
        pooled=model.global_pool not in ("token", ""),
    )


class ViT(Tokens):
    title = "timm VisionTransformer (ViT, DeiT, DeiT3, DINOv2, CLIP, SigLIP)"
    model, attention = VisionTransformer, (Attention,)
    # ParallelThingsBlock names its parts ffns; ResPostBlock normalises behind them
    middle: ClassVar = {ParallelThingsBlock: "ffns.0", ResPostBlock: "mlp", ViTBlock: "norm2"}

    def strange(self, name: str, module: nn.Module) -> UserError:
        if name.endswith(".attn"):
            return HeadsMixed(
                f"{name} is a {type(module).__name__}, expected timm.layers.Attention: its heads "
                "are combined before "
                f"the projection, so none can be gated alone."
            )
        return HeadsMixed(
            f"{name} is a {type(module).__name__}: its heads and its MLP share one projection, or "
            "its heads are "
            "combined before it, so no slice of channels belongs to one head. Use a model of "
            "plain blocks."
        )

    def pieces(self, model: Any) -> tuple[Piece, Sequence[Piece]]:
        parts = (model.patch_embed, model._pos_embed, model.patch_drop, model.norm_pre)
        return lambda images: functools.reduce(lambda x, part: part(x), parts, images), model.blocks

    def direct_path(self, model: Any) -> DirectPath:
        kinds = [kind_of(block, self.middle) for block in model.blocks]
        odd = next((kind.__name__ for kind in kinds if kind is ResPostBlock), None)
        if odd is not None or units.other_forward(model, VisionTransformer):
            apart = f"{type(model).__name__} has its own forward"
            reason = f"a norm stands behind the heads of a {odd}" if odd else apart
            raise UserError(
                f"logit_attribution: the write of a head cannot be traced to the logits: {reason}."
            )
        units.linear_pool(model.global_pool)
        return DirectPath(
            between=(None,) * len(model.blocks),
            norm=model.norm,
            pool=model.pool,
            head=lambda x: model.head(model.head_drop(model.fc_norm(x))),
        )


class Eva(Tokens):
    """Queries, keys and values come from one projection or from three; several heads may share keys and values."""

    title = "timm Eva (EVA, EVA-02, DINOv3, PE, ViT with rotary positions)"
    model, attention = eva.Eva, (eva.EvaAttention, AttentionRope, Rotary)
    middle: ClassVar = {
        eva.EvaBlock: "norm2",
        eva.EvaBlockPostNorm: "mlp",
    }  # the latter normalises behind its parts

    def pieces(self, model: Any) -> tuple[Piece, Sequence[Piece]]:
        rope: list[Any] = [None]  # of the images that went through the stem last

        def stem(images: Tensor) -> Tensor:
            x, rope[0] = model._pos_embed(model.patch_embed(images))
            return model.norm_pre(x)

        def through(number: int, block: nn.Module, x: Tensor) -> Tensor:
            mixed = model.rope_mixed and rope[0] is not None  # each block has its own
            return block(x, rope=rope[0][number] if mixed else rope[0])

        return stem, [
            functools.partial(through, number, block) for number, block in enumerate(model.blocks)
        ]

    def unprunable(self, model: Any, kinds: Collection[str] = ("head",)) -> str | None:
        if "head" in kinds and any(
            getattr(block.attn, "num_kv_groups", 1) > 1 for block in model.blocks
        ):  # newer timm
            reason = "the heads of timm's AttentionRope share keys and values here, so none can be removed alone."
            return f"{reason} {units.STILL}"
        return super().unprunable(model, kinds)


class _Positioned(Tokens):
    """Token models with biases of positions, of each block, or ``positions`` of all: argument ``shared`` of blocks."""

    positions: ClassVar[str]
    shared: ClassVar[str]

    def pieces(self, model: Any) -> tuple[Piece, Sequence[Piece]]:
        def stem(images: Tensor) -> Tensor:
            x = model.patch_embed(images)
            if model.cls_token is not None:
                x = torch.cat((model.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
            x = x if getattr(model, "pos_embed", None) is None else x + model.pos_embed
            return getattr(model, "pos_drop", nn.Identity())(x)

        of_all = getattr(model, self.positions)
        bias = None if of_all is None else getattr(of_all, "get_bias", of_all)()
        return stem, [functools.partial(block, **{self.shared: bias}) for block in model.blocks]


class Beit(_Positioned):
    """Queries and values have biases of their own: its forward uses the weight of ``qkv`` without calling it."""

    title = "timm Beit (BEiT v1 and v2)"
    model, attention = beit.Beit, (beit.Attention, Biased)
    middle: ClassVar = {beit.Block: "norm2"}
    positions, shared = "rel_pos_bias", "shared_rel_pos_bias"


class RelPos(_Positioned):
    title = "timm VisionTransformerRelPos (ViT with relative positions)"
    model = vision_transformer_relpos.VisionTransformerRelPos
    attention = vision_transformer_relpos.RelPosAttention, Biased
    middle: ClassVar = {
        vision_transformer_relpos.RelPosBlock: "norm2",
        vision_transformer_relpos.ResPostRelPosBlock: "mlp",  # normalises behind its parts
    }
    positions = shared = "shared_rel_pos"
