"""timm's models of stages that attend in windows: families that are one row each."""

import math
from typing import Any, ClassVar

from timm.layers import to_2tuple
from torch import Tensor, nn

from mhprobe.backbones.parts.located import (
    CHANNELS,
    Kind,
    Located,
    Parts,
    Reshaped,
    Trial,
    apart,
    by_head,
    never,
    packed,
    weight_of,
)
from mhprobe.heads import Windows


def _as_said(trial: Trial) -> Windows | None:
    """Windows of the block's ``window_size``, not shifted; None where it attends to all tokens."""
    size = trial.block.window_size
    return Windows(grid=trial.grid, size=to_2tuple(size), shift=(0, 0)) if size else None


def _behind_channels(trial: Trial) -> Windows:
    return Windows(grid=trial.grid_behind_channels, size=trial.block.window_size, shift=(0, 0))


def _turned(attention: Any, heads: int) -> Parts:
    """Keys meet values, and what is mixed with their weights are the queries."""
    query, key, value = packed(attention, heads)
    return key, value, query


class DaViT(Located):
    """timm's DaVit: windows of tokens, then attention between channels."""

    title = "timm DaVit"
    model = "timm.models.davit.DaVit"
    kinds: ClassVar = {
        "timm.models.davit.WindowAttention": Kind(
            windows=_behind_channels, weights=lambda attention: attention.softmax[1]
        ),
        "timm.models.davit.ChannelAttention": Kind(parts=_turned, weights=never, hidden=CHANNELS),
        "timm.models.davit.ChannelAttentionV2": Kind(weights=never, hidden=CHANNELS, heads="groups"),
    }

    @classmethod
    def prepare(cls, model: Any) -> None:
        super().prepare(model)
        for module in model.modules():
            if isinstance(getattr(module, "softmax", None), nn.Softmax):
                module.softmax = nn.Sequential(module.softmax, nn.Identity())  # room to look, behind it


def _global_queries(attention: Any, heads: int) -> Parts:
    if not attention.use_global:
        return packed(attention, heads)
    key, value = weight_of(attention.qkv).unflatten(0, (2, heads, -1))
    query: Tensor = key.new_zeros(key.shape)  # queries come from elsewhere: it has no weights for them
    return query, key, value


class GCViT(Located):
    """timm's GlobalContextVit: attention in windows. In every second block the queries come from the whole image."""

    title = "timm GlobalContextVit (GC ViT)"
    model = "timm.models.gcvit.GlobalContextVit"
    kinds: ClassVar = {"timm.models.gcvit.WindowAttentionGlobal": Kind(parts=_global_queries, windows=_as_said)}


def _pooled(trial: Trial) -> Windows | None:
    if not trial.block.is_windowed:
        return None
    down, right = trial.block.q_stride or (1, 1)
    (height, width), (tall, wide) = trial.grid, trial.block.window_size
    return Windows(grid=(height // down, width // right), size=(tall // down, wide // right), shift=(0, 0))


class HieraDet(Located):
    """timm's HieraDet: SAM 2's encoder, in windows, with pooled queries where a stage begins."""

    title = "timm HieraDet (SAM 2)"
    model = "timm.models.hieradet_sam2.HieraDet"
    kinds: ClassVar = {"timm.models.hieradet_sam2.MultiScaleAttention": Kind(windows=_pooled, weights=never)}


def _by_head_or_packed(attention: Any, heads: int) -> Parts:
    return (by_head if attention.head_first else packed)(attention, heads)


def _partitions(trial: Trial) -> Windows | None:
    size = getattr(trial.block, "partition_size", None)
    if size is None:
        return None  # all tokens
    first = type(trial.block).__name__.endswith("2d")
    grid = trial.grid_behind_channels if first else trial.grid
    far = trial.name.endswith("attn_grid") or not getattr(trial.block, "partition_block", True)
    return Windows(grid=grid, size=tuple(size), shift=(0, 0), strided=far)


class MaxxVit(Located):
    """timm's MaxxVit: MaxViT, CoAtNet and what lies between. Windows of neighbours, then of distant tokens; or all."""

    title = "timm MaxxVit (MaxViT, CoAtNet)"
    model = "timm.models.maxxvit.MaxxVit"
    kinds: ClassVar = dict.fromkeys(
        ("timm.models.maxxvit.AttentionCl", "timm.models.maxxvit.Attention2d"),
        Kind(parts=_by_head_or_packed, windows=_partitions),
    )


class Sam(Located):
    """timm's VisionTransformerSAM: Segment Anything's encoder. It attends in windows, and in some blocks globally."""

    title = "timm VisionTransformerSAM (SAM)"
    model = "timm.models.vision_transformer_sam.VisionTransformerSAM"
    kinds: ClassVar = {
        "timm.models.vision_transformer_sam.Attention": Kind(
            windows=_as_said, weights=lambda attention: attention.attn_drop.seen
        )
    }

    @classmethod
    def prepare(cls, model: Any) -> None:
        for module in model.modules():
            if cls.kind(module) is not None and not isinstance(module.attn_drop, Reshaped):
                module.attn_drop = Reshaped(module.attn_drop, module.num_heads, "rows")


def _shifted(trial: Trial) -> Windows:
    return Windows(grid=trial.grid, size=trial.block.window_size, shift=trial.block.shift_size)


class SwinV2Cr(Located):
    """timm's SwinTransformerV2Cr: shifted windows as in Swin, cosine attention, norms behind the parts of a block."""

    title = "timm SwinTransformerV2Cr (Swin V2 of another hand)"
    model = "timm.models.swin_transformer_v2_cr.SwinTransformerV2Cr"
    kinds: ClassVar = {"timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention": Kind(windows=_shifted)}


class TinyViT(Located):
    """timm's TinyVit: windows."""

    title = "timm TinyVit"
    model = "timm.models.tiny_vit.TinyVit"
    kinds: ClassVar = {"timm.models.tiny_vit.Attention": Kind(parts=by_head, windows=_as_said, weights=never)}


def _patches(trial: Trial) -> Windows | None:
    patches, pixels = trial.entered[:2]
    if patches == 1:
        return None
    across, side = math.isqrt(patches), math.isqrt(pixels)
    return Windows(grid=(across * side, across * side), size=(side, side), shift=(0, 0))


class TNT(Located):
    """timm's TNT: a transformer of the pixels of a patch inside one of patches."""

    title = "timm TNT"
    model = "timm.models.tnt.TNT"
    kinds: ClassVar = {"timm.models.tnt.Attention": Kind(parts=apart("qk", "v"), windows=_patches)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return int(trial.entered[0] == 1)  # pixels of a patch have none
