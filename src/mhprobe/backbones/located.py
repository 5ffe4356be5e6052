"""Table of timm families, a row each: the attention class and its parts.

First tokens in a line, then windows, then networks of convolutions; last families with a method.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

from timm.layers import to_2tuple
from torch import Tensor, nn

from mhprobe.backbones.base import submodule
from mhprobe.backbones.parts.located import (
    CHANNELS,
    COARSER,
    Located,
    MetaRun,
    PartNames,
    apart,
    by_head,
    packed,
    row,
)
from mhprobe.backbones.parts.units import Parts, no_norm_between, weight_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite, HeadWeights, Windows

FACTORISED = "it is factorised: keys meet values first, and no weights come to be"
NO_KEYS = "each patch mixes its neighbours with weights of its own, and there are no keys"
INSIDE = "it cuts its windows, and puts them together again, inside itself"


def _outlook(attention: Any, heads: int) -> Parts:
    """No queries and keys (D = 0): each patch itself gives the weights of its neighbours, by one layer."""
    value = weight_of(attention.v).unflatten(0, (heads, -1))
    return value[:, :0], value[:, :0], value


def _turned(attention: Any, heads: int) -> Parts:
    """Products of keys and values are the weights of queries."""
    query, key, value = packed(attention, heads)
    return key, value, query


def _global_queries(attention: Any, heads: int) -> Parts:
    if not attention.use_global:
        return packed(attention, heads)
    key, value = weight_of(attention.qkv).unflatten(0, (2, heads, -1))
    return (
        key.new_zeros(key.shape),
        key,
        value,
    )  # queries come from elsewhere: it has no weights for them


def _three_by_head(attention: Any, heads: int) -> Parts:
    return weight_of(attention.pwise).unflatten(0, (heads, 3, -1)).unbind(1)


def _shared(attention: Any, heads: int) -> Parts:
    key, value = (
        weight_of(part.proj).expand(heads, -1, -1) for part in (attention.key, attention.value)
    )
    return weight_of(attention.query.proj).unflatten(0, (heads, -1)), key, value


def _as_said(trial: MetaRun) -> Windows | None:
    size, shift = trial.block.window_size, getattr(trial.block, "shift_size", (0, 0))
    return Windows(grid=trial.grid(), size=to_2tuple(size), shift=shift) if size else None


def _pooled(trial: MetaRun) -> Windows | None:
    if not trial.block.is_windowed:
        return None
    down, right = trial.block.q_stride or (1, 1)
    (height, width), (tall, wide) = trial.grid(), trial.block.window_size
    return Windows(
        grid=(height // down, width // right), size=(tall // down, wide // right), shift=(0, 0)
    )


def _partitions(trial: MetaRun) -> Windows | None:
    if (size := getattr(trial.block, "partition_size", None)) is None:
        return None
    grid = trial.grid(channels_first=type(trial.block).__name__.endswith("2d"))
    far = trial.name.endswith("attn_grid") or not getattr(trial.block, "partition_block", True)
    return Windows(grid=grid, size=tuple(size), shift=(0, 0), strided=far)


def _patches(trial: MetaRun) -> Windows | None:
    patches, pixels = trial.entered[:2]
    if patches == 1:
        return None
    across = math.isqrt(patches)
    side = math.isqrt(pixels)
    return Windows(grid=(across * side, across * side), size=(side, side), shift=(0, 0))


class WatchedDropout(nn.Module):
    """A dropout on attention weights (B * H, Q, K), which pass ``seen`` as (B, H, Q, K)."""

    def __init__(self, dropout: nn.Module, heads: int) -> None:
        super().__init__()
        self.dropout, self.seen, self.heads = dropout, nn.Identity(), heads

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.seen(x.unflatten(0, (-1, self.heads))).flatten(0, 1))


def _room_for_heads(attention: Any) -> None:
    if not isinstance(attention.attn_drop, WatchedDropout):
        attention.attn_drop = WatchedDropout(attention.attn_drop, attention.num_heads)


def _room_behind(attention: Any) -> None:
    if isinstance(attention.softmax, nn.Softmax):
        attention.softmax = nn.Sequential(attention.softmax, nn.Identity())


def _on_the_grid(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if queries and keys are on the grid."""
    return None if attention.kv_stride > 1 or attention.has_query_strides else attention.attn_drop


def _not_fused(trial: MetaRun) -> None:
    if isinstance(trial.attention.o_proj, nn.Identity):
        raise UserError(
            f"{trial.name}: its output projection is one with the convolution that brings the grid "
            "back to size "
            f"(fuse_out_proj), so what a head writes is spread over places. Not supported."
        )


PLAIN = {"Attention": PartNames()}
TOKENS = dict.fromkeys(
    ("Attention", "AttentionRope", "EvaAttention"),
    PartNames(refuse=lambda trial: no_norm_between(trial.name, trial.attention)),
)
POOLED = {"MultiScaleAttention": PartNames(weights=None, hidden=COARSER)}
GEMMA = {"Gemma4Attention": PartNames(point="o_proj")}
OUTLOOK = PartNames(parts=_outlook, weights=None, hidden=NO_KEYS)
GLOBAL_QUERIES = {"WindowAttentionGlobal": PartNames(parts=_global_queries, windows=_as_said)}
POOLED_QUERIES = {"MultiScaleAttention": PartNames(windows=_pooled, weights=None)}
PARTITIONED = dict.fromkeys(
    ("AttentionCl", "Attention2d"),
    PartNames(
        parts=lambda part, heads: (by_head if part.head_first else packed)(part, heads),
        windows=_partitions,
    ),
)
SAM = {
    "Attention": PartNames(
        windows=_as_said, weights=lambda part: part.attn_drop.seen, prepare=_room_for_heads
    )
}
COARSER_KEYS = PartNames(  # unless ``sr`` is None
    parts=apart("q", "kv"),
    weights=lambda part: part.attn_drop if part.sr is None else None,
    hidden=COARSER,
)
TWINS = {
    "LocallyGroupedAttn": PartNames(weights=None, hidden=INSIDE),
    "GlobalSubSampleAttn": COARSER_KEYS,
}
NEXT = {"EfficientAttention": dataclasses.replace(COARSER_KEYS, parts=apart("q", "k", "v"))}
ON_COARSER_GRID = {
    "ConvAttention": PartNames(
        point="o_proj", parts=_three_by_head, weights=None, refuse=_not_fused
    )
}

TABLE = [
    # tokens in a line; of CrossViT's two branches the attention from one's class token to the other
    # has no gates
    row(
        "naflexvit.NaFlexVit",
        kinds=TOKENS,
        aside=("AttentionPoolLatent",),
        before="num_prefix_tokens",
    ),
    row(
        "deepseek_vit.DeepseekVitEncoder",
        "deepseek_vit.DeepseekVitClassifier",
        kinds=TOKENS,
        title="DeepSeek ViT",
    ),
    row(
        "qwen3_vit.Qwen3VitEncoder", "qwen3_vit.Qwen3VitClassifier", kinds=TOKENS, title="Qwen3 ViT"
    ),
    row(
        "pit.PoolingVisionTransformer",
        kinds=TOKENS,
        title="PoolingVisionTransformer (PiT)",
        before="num_tokens",
    ),
    row(
        "crossvit.CrossVit", kinds=TOKENS, aside=("CrossAttention", "CrossAttentionBlock"), before=1
    ),
    # the class token comes in behind the first blocks
    row(
        "convit.ConVit",
        kinds={"GPSA": PartNames(parts=apart("qk", "v")), "MHSA": PartNames()},
        before=lambda trial: trial.entered[1] - math.isqrt(trial.entered[1]) ** 2,
    ),
    # queries, keys and values are pooled
    row(
        "mvitv2.MultiScaleVit",
        kinds=POOLED,
        title="MultiScaleVit (MViTv2)",
        before="num_prefix_tokens",
    ),
    row(
        "gemma4_vit.Gemma4VitEncoder",
        "gemma4_vit.Gemma4VitClassifier",
        kinds=GEMMA,
        title="Gemma 4 ViT",
    ),
    # factorised attention beside a convolution of each head's values
    row(
        "coat.CoaT",
        kinds={"FactorAttnConvRelPosEnc": PartNames(weights=None, hidden=FACTORISED)},
        before=1,
    ),
    # cross-covariance and outlook attention; the class attention at their ends has no gates
    row(
        "xcit.Xcit",
        kinds={"XCA": PartNames(weights=None, hidden=CHANNELS)},
        aside=("ClassAttn",),
        title="Xcit (XCiT)",
    ),
    row("volo.VOLO", kinds={**PLAIN, "OutlookAttention": OUTLOOK}, aside=("ClassAttention",)),
    # windows of tokens, then attention between channels
    row(
        "davit.DaVit",
        kinds={
            "WindowAttention": PartNames(
                windows=lambda trial: Windows(
                    trial.grid(channels_first=True), trial.block.window_size, shift=(0, 0)
                ),
                weights=lambda attention: attention.softmax[1],
                prepare=_room_behind,
            ),
            "ChannelAttention": PartNames(parts=_turned, weights=None, hidden=CHANNELS),
            "ChannelAttentionV2": PartNames(weights=None, hidden=CHANNELS, heads="groups"),
        },
    ),
    # in every second block the queries come from the whole image
    row("gcvit.GlobalContextVit", kinds=GLOBAL_QUERIES, title="GlobalContextVit (GC ViT)"),
    # pooled queries where a stage begins
    row("hieradet_sam2.HieraDet", kinds=POOLED_QUERIES, title="HieraDet (SAM 2)"),
    # windows of neighbours, then of distant tokens; or all
    row("maxxvit.MaxxVit", kinds=PARTITIONED, title="MaxxVit (MaxViT, CoAtNet)"),
    # windows, and in some blocks all tokens
    row(
        "vision_transformer_sam.VisionTransformerSAM", kinds=SAM, title="VisionTransformerSAM (SAM)"
    ),
    # cosine attention, norms behind the parts of a block
    row(
        "swin_transformer_v2_cr.SwinTransformerV2Cr",
        kinds={"WindowMultiHeadAttention": PartNames(windows=_as_said)},
        title="SwinTransformerV2Cr (Swin V2 of another hand)",
    ),
    row(
        "tiny_vit.TinyVit",
        kinds={"Attention": PartNames(parts=by_head, windows=_as_said, weights=None)},
    ),
    # a transformer of the pixels of a patch, which have no class token, inside one of patches
    row(
        "tnt.TNT",
        kinds={"Attention": PartNames(parts=apart("qk", "v"), windows=_patches)},
        before=lambda trial: int(trial.entered[0] == 1),
    ),
    # convolutions
    row(
        "pvt_v2.PyramidVisionTransformerV2",
        kinds={"Attention": COARSER_KEYS},
        title="PyramidVisionTransformerV2 (PVT v2)",
    ),
    row("twins.Twins", kinds=TWINS),
    row("csatv2.CSATv2", kinds=PLAIN),  # over frequencies; its last stages attend
    row(
        "edgenext.EdgeNeXt", kinds={"CrossCovarianceAttn": PartNames(weights=None, hidden=CHANNELS)}
    ),  # in some blocks
    row(
        "efficientformer.EfficientFormer",
        kinds={"Attention": PartNames(parts=by_head, weights=None)},
    ),  # its last blocks
    row("fastvit.FastVit", kinds=PLAIN),  # the larger ones attend in their last stage
    # CAFormer's last stages attend; the other stages, and ConvFormer, have no heads
    row("metaformer.MetaFormer", kinds=PLAIN, title="MetaFormer (CAFormer)"),
    # its convolutions with groups are no attention
    row("nextvit.NextViT", kinds=NEXT),
    row("visformer.Visformer", kinds=PLAIN),  # its last stages attend
    # attention on a coarser grid, brought back to size by a convolution
    row("lowformer.LowFormer", kinds=ON_COARSER_GRID),
    row("cpubone.CPUBone", kinds=ON_COARSER_GRID),
]


class MobileNetV5(Located):
    """timm's MobileNetV5 and the hybrids of MobileNetV4: multi-query attention, whose heads share a key and a value.

    A head is its query, and the slice of the projection that reads what it found.
    """

    model: ClassVar[Any] = (
        "timm.models.mobilenetv5.MobileNetV5",
        "timm.models.mobilenetv5.MobileNetV5Encoder",
    )
    kinds: ClassVar = {
        "MultiQueryAttention2d": PartNames(
            point="output.proj", parts=_shared, weights=_on_the_grid, hidden=COARSER
        )
    }


class MobileNetV4(MobileNetV5):
    title = "timm MobileNetV4, hybrid"
    model = "timm.models.mobilenetv3.MobileNetV3"

    def claims(self, model: nn.Module) -> bool:
        return super().claims(model) and any(
            self.kind(part) is not None for part in model.modules()
        )


def _levit(
    attention: Any, heads: int, of: Callable[[Any], Tensor] = lambda layer: weight_of(layer.linear)
) -> Parts:
    """Values are wider than queries and keys; where the grid shrinks, queries have a layer of their own."""
    width = attention.key_dim
    if hasattr(attention, "qkv"):
        return of(attention.qkv).unflatten(0, (heads, -1)).tensor_split((width, 2 * width), dim=1)
    key, value = of(attention.kv).unflatten(0, (heads, -1)).tensor_split((width,), dim=1)
    return of(attention.q.ln).unflatten(0, (heads, -1)), key, value


def _normed(layer: Any) -> Tensor:
    """(outputs, C) of a linear layer with the factor of the norm behind it."""
    factor = layer.bn.weight / (layer.bn.running_var + layer.bn.eps).sqrt()
    return weight_of(layer.linear) * factor.detach()[:, None]


class Levit(Located):
    """timm's LeViT: attention whose linear layers have a norm each, and which shrinks the grid between stages.

    A head's outputs pass an activation, channel by channel, before the projection; its gate stands
    behind that. In eval mode each norm is a factor and a shift per channel: the factor is part of a
    head's weights.
    """

    title = "timm LeViT"
    model = "timm.models.levit.Levit"
    kinds: ClassVar = dict.fromkeys(
        ("Attention", "AttentionDownsample"),
        PartNames(point="proj.ln.linear", parts=_levit, weights=None),
    )

    def head_weights(self, model: Any, site: HeadSite) -> HeadWeights:
        attention: Any = submodule(model, site)
        written = _normed(attention.proj.ln).mT.unflatten(0, (site.num_heads, site.head_dim))
        query, key, value = _levit(attention, site.num_heads, _normed)
        return HeadWeights(query, key, value, written)
