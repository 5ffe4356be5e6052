"""timm's Eva: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with rotary positions.

EvaAttention (no bias of keys) and AttentionRope concatenate their heads like a ViT. Queries, keys and values come from
one projection or from three. ``scale_norm`` (EVA-02 CLIP) mixes heads before the projection. Where several heads share
keys and values (Sapiens2), each is still gated alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from timm.layers import AttentionRope
from timm.models.eva import Eva as Model
from timm.models.eva import EvaAttention, EvaBlock, EvaBlockPostNorm
from torch import Tensor, nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts import NoHeads, keep_channels, no_norm_between, of_fixed_width, other_forward, token_site
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite

_MIDDLE = {EvaBlock: "norm2", EvaBlockPostNorm: "mlp"}  # the latter normalises behind its parts


class Eva(Family):
    title = "timm Eva (EVA, EVA-02, DINOv3, PE, ViT with rotary positions)"

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, Model)

    @staticmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            name = f"blocks.{number}.attn"
            if type(block) not in _MIDDLE or type(block.attn) not in (EvaAttention, AttentionRope):
                raise UserError(
                    f"{name} is a {type(block.attn).__name__} in a {type(block).__name__}, expected timm's "
                    f"EvaAttention or AttentionRope in an EvaBlock: nobody has looked where its heads are."
                )
            no_norm_between(name, block.attn)
            if block.attn.num_heads > 0:  # else all were removed
                yield token_site(model, number, name, block.attn)

    @staticmethod
    def blocks(model: Any) -> Iterator[Block]:
        for number, block in enumerate(model.blocks):
            yield Block(name=f"blocks.{number}", stage=0, middle=f"blocks.{number}.{_MIDDLE[type(block)]}")

    @staticmethod
    def segments(model: Any) -> Segments | None:
        if other_forward(model, Model):
            return None
        rope: list[Any] = [None]  # of the images that went through the stem last

        def stem(images: Tensor) -> Tensor:
            x, rope[0] = model._pos_embed(model.patch_embed(images))
            return model.norm_pre(x)

        def through(number: int, block: nn.Module, x: Tensor) -> Tensor:
            mixed = model.rope_mixed and rope[0] is not None  # each block has its own
            return block(x, rope=rope[0][number] if mixed else rope[0])

        blocks: list[Callable[[Tensor], Tensor]] = [
            functools.partial(through, number, block) for number, block in enumerate(model.blocks)
        ]
        return Segments(stem=stem, blocks=tuple(blocks), tail=lambda x: model.forward_head(model.norm(x)))

    @classmethod
    def query_key_value(cls, attention: Any, site: HeadSite) -> tuple[Tensor, Tensor, Tensor]:
        if attention.qkv is not None:
            return super().query_key_value(attention, site)
        query, key, value = (
            part.weight.detach().unflatten(0, (-1, site.head_dim))
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if (shared := site.num_heads // len(key)) > 1:
            key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
        return query, key, value

    @classmethod
    def unprunable(cls, model: Any) -> str | None:
        for block in model.blocks:
            if isinstance(block.attn, EvaAttention):
                return of_fixed_width(block.attn)
            if block.attn.num_kv_groups > 1:
                return (
                    "the heads of timm's AttentionRope share keys and values here, so none can be removed alone. They "
                    "can still be gated, measured and masked (mhprobe.probe, mhprobe.mask)."
                )
        if model.rope_mixed:
            return (
                "timm's mixed rotary positions are one tensor for all heads of all blocks, so no block can lose heads "
                "alone. They can still be gated, measured and masked (mhprobe.probe, mhprobe.mask)."
            )
        return None

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        if (reason := cls.unprunable(model)) is not None:
            raise UserError(f"{site.name}: {reason}")
        attn = model.get_submodule(site.name)
        keep_channels(attn, site, keep)
        attn.num_kv_heads, attn.attn_dim, attn.kv_dim = len(keep), *[len(keep) * site.head_dim] * 2

    @classmethod
    def replace_empty(cls, model: Any) -> None:
        for block in model.blocks:
            if block.attn.num_heads == 0:  # ONNX cannot reshape to zero heads
                block.attn = NoHeads(block.attn.proj)
