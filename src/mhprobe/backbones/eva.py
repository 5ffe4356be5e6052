"""timm's Eva: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with rotary positions.

Queries, keys and values come from one projection or from three. ``scale_norm`` (EVA-02 CLIP) mixes heads before the
projection. Where several heads share keys and values (Sapiens2), each is still gated alone.
"""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from timm.layers import AttentionRope
from timm.models.eva import Eva as Model
from timm.models.eva import EvaAttention, EvaBlock, EvaBlockPostNorm
from torch import Tensor, nn

from mhprobe.backbones.parts.attention import keep_channels, of_fixed_width
from mhprobe.backbones.parts.tokens import Piece, Tokens
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite


class Eva(Tokens):
    title = "timm Eva (EVA, EVA-02, DINOv3, PE, ViT with rotary positions)"
    model, attention = Model, (EvaAttention, AttentionRope)
    middle: ClassVar = {EvaBlock: "norm2", EvaBlockPostNorm: "mlp"}  # the latter normalises behind its parts

    @staticmethod
    def claims(model: nn.Module) -> bool:
        return isinstance(model, Model)

    @classmethod
    def pieces(cls, model: Any) -> tuple[Piece, Sequence[Piece]]:
        rope: list[Any] = [None]  # of the images that went through the stem last

        def stem(images: Tensor) -> Tensor:
            x, rope[0] = model._pos_embed(model.patch_embed(images))
            return model.norm_pre(x)

        def through(number: int, block: nn.Module, x: Tensor) -> Tensor:
            mixed = model.rope_mixed and rope[0] is not None  # each block has its own
            return block(x, rope=rope[0][number] if mixed else rope[0])

        return stem, [functools.partial(through, number, block) for number, block in enumerate(model.blocks)]

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
            if getattr(block.attn, "num_kv_groups", 1) > 1:  # timm has them from 1.0.30
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
