"""timm's models whose attention is found by class: families that are one row each, by how their tokens lie.

First tokens in a line that a ViT's own family does not claim, then stages that attend in windows, then networks of
convolutions whose last stages, or some blocks, attend.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from timm.layers import to_2tuple
from torch import Tensor, nn

from mhprobe.backbones.base import submodule
from mhprobe.backbones.parts.attention import no_norm_between
from mhprobe.backbones.parts.located import (
    CHANNELS,
    COARSER,
    Kind,
    Located,
    Parts,
    Trial,
    apart,
    by_head,
    packed,
    weight_of,
)
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite, HeadWeights, Windows

# tokens in a line


TOKENS = dict.fromkeys(("Attention", "AttentionRope", "EvaAttention"), Kind())


class NaFlexVit(Located):  # a ViT for images of any size (here of one)
    model = "naflexvit.NaFlexVit"
    kinds: ClassVar = TOKENS
    aside = ("AttentionPoolLatent",)
    before = "num_prefix_tokens"

    @classmethod
    def refuse(cls, model: Any, trial: Trial) -> None:
        no_norm_between(trial.name, trial.attention)


class DeepSeek(Located):
    title = "timm DeepSeek ViT"
    model = "deepseek_vit.DeepseekVitEncoder", "deepseek_vit.DeepseekVitClassifier"
    kinds: ClassVar = TOKENS


class Qwen3(Located):
    title = "timm Qwen3 ViT"
    model = "qwen3_vit.Qwen3VitEncoder", "qwen3_vit.Qwen3VitClassifier"
    kinds: ClassVar = TOKENS


class PiT(Located):  # a ViT in three stages
    title = "timm PoolingVisionTransformer (PiT)"
    model = "pit.PoolingVisionTransformer"
    kinds: ClassVar = TOKENS
    before = "num_tokens"  # one, or with a distillation token two


class CrossVit(Located):
    """timm's CrossVit: two ViTs side by side. The attention from one's class token to the other is not gated."""

    model = "crossvit.CrossVit"
    kinds: ClassVar = TOKENS
    aside = ("CrossAttention", "CrossAttentionBlock")
    before = 1


class ConViT(Located):  # attention gated between content and position, then a ViT's
    model = "convit.ConVit"
    kinds: ClassVar = {"GPSA": Kind(parts=apart("qk", "v")), "MHSA": Kind()}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        tokens = trial.entered[1]  # the class token comes in behind the first blocks
        return tokens - math.isqrt(tokens) ** 2


class MViTv2(Located):  # queries, keys and values are pooled
    title = "timm MultiScaleVit (MViTv2)"
    model = "mvitv2.MultiScaleVit"
    kinds: ClassVar = {"MultiScaleAttention": Kind(weights=None, hidden=COARSER)}
    before = "num_prefix_tokens"


class Gemma4(Located):
    title = "timm Gemma 4 ViT"
    model = "gemma4_vit.Gemma4VitEncoder", "gemma4_vit.Gemma4VitClassifier"
    kinds: ClassVar = {"Gemma4Attention": Kind(point="o_proj")}


FACTORISED = "it is factorised: keys meet values first, and no weights come to be"
OUTLOOK = "each patch mixes its neighbours with weights of its own, and there are no keys"


class CoaT(Located):  # factorised attention beside a convolution of each head's values
    model = "coat.CoaT"
    kinds: ClassVar = {"FactorAttnConvRelPosEnc": Kind(weights=None, hidden=FACTORISED)}
    before = 1


class Xcit(Located):
    """timm's Xcit: cross-covariance attention. The class-attention blocks at the end have no gates."""

    title = "timm Xcit (XCiT)"
    model = "xcit.Xcit"
    kinds: ClassVar = {"XCA": Kind(weights=None, hidden=CHANNELS)}
    aside = ("ClassAttn",)


def _outlook(attention: Any, heads: int) -> Parts:
    """A patch says by itself how its neighbours are mixed: one layer stands where queries and keys are elsewhere."""
    weights = weight_of(attention.attn).unflatten(0, (heads, -1))
    return weights, weights, weight_of(attention.v).unflatten(0, (heads, -1))


class Volo(Located):
    """timm's VOLO: outlook attention, then attention. The class attention at the end has no gates."""

    model = "volo.VOLO"
    kinds: ClassVar = {
        "OutlookAttention": Kind(parts=_outlook, weights=None, hidden=OUTLOOK),
        "Attention": Kind(),
    }
    aside = ("ClassAttention",)


# windows


def _as_said(trial: Trial) -> Windows | None:
    """Windows of the block's ``window_size``; None where it attends to all tokens."""
    size, shift = trial.block.window_size, getattr(trial.block, "shift_size", (0, 0))
    return Windows(grid=trial.grid(), size=to_2tuple(size), shift=shift) if size else None


def _turned(attention: Any, heads: int) -> Parts:
    """Keys meet values, and what is mixed with their weights are the queries."""
    query, key, value = packed(attention, heads)
    return key, value, query


class DaViT(Located):  # windows of tokens, then attention between channels
    model = "davit.DaVit"
    kinds: ClassVar = {
        "WindowAttention": Kind(
            windows=lambda trial: Windows(trial.grid(channels_first=True), trial.block.window_size, shift=(0, 0)),
            weights=lambda attention: attention.softmax[1],
        ),
        "ChannelAttention": Kind(parts=_turned, weights=None, hidden=CHANNELS),
        "ChannelAttentionV2": Kind(weights=None, hidden=CHANNELS, heads="groups"),
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


class GCViT(Located):  # in every second block the queries come from the whole image
    title = "timm GlobalContextVit (GC ViT)"
    model = "gcvit.GlobalContextVit"
    kinds: ClassVar = {"WindowAttentionGlobal": Kind(parts=_global_queries, windows=_as_said)}


def _pooled(trial: Trial) -> Windows | None:
    if not trial.block.is_windowed:
        return None
    down, right = trial.block.q_stride or (1, 1)
    (height, width), (tall, wide) = trial.grid(), trial.block.window_size
    return Windows(grid=(height // down, width // right), size=(tall // down, wide // right), shift=(0, 0))


class HieraDet(Located):  # pooled queries where a stage begins
    title = "timm HieraDet (SAM 2)"
    model = "hieradet_sam2.HieraDet"
    kinds: ClassVar = {"MultiScaleAttention": Kind(windows=_pooled, weights=None)}


def _partitions(trial: Trial) -> Windows | None:
    size = getattr(trial.block, "partition_size", None)
    if size is None:
        return None  # all tokens
    grid = trial.grid(channels_first=type(trial.block).__name__.endswith("2d"))
    far = trial.name.endswith("attn_grid") or not getattr(trial.block, "partition_block", True)
    return Windows(grid=grid, size=tuple(size), shift=(0, 0), strided=far)


class MaxxVit(Located):  # windows of neighbours, then of distant tokens; or all
    title = "timm MaxxVit (MaxViT, CoAtNet)"
    model = "maxxvit.MaxxVit"
    kinds: ClassVar = dict.fromkeys(
        ("AttentionCl", "Attention2d"),
        Kind(
            parts=lambda attention, heads: (by_head if attention.head_first else packed)(attention, heads),
            windows=_partitions,
        ),
    )


class Seen(nn.Module):
    """A dropout on attention weights (B * H, Q, K), which are seen as (B, H, Q, K) by ``seen``."""

    def __init__(self, dropout: nn.Module, heads: int) -> None:
        super().__init__()
        self.dropout, self.seen, self.heads = dropout, nn.Identity(), heads

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.seen(x.unflatten(0, (-1, self.heads))).flatten(0, 1))


class Sam(Located):  # windows, and in some blocks all tokens
    title = "timm VisionTransformerSAM (SAM)"
    model = "vision_transformer_sam.VisionTransformerSAM"
    kinds: ClassVar = {"Attention": Kind(windows=_as_said, weights=lambda attention: attention.attn_drop.seen)}

    @classmethod
    def prepare(cls, model: Any) -> None:
        for module in model.modules():
            if cls.kind(module) is not None and not isinstance(module.attn_drop, Seen):
                module.attn_drop = Seen(module.attn_drop, module.num_heads)


class SwinV2Cr(Located):  # cosine attention, norms behind the parts of a block
    title = "timm SwinTransformerV2Cr (Swin V2 of another hand)"
    model = "swin_transformer_v2_cr.SwinTransformerV2Cr"
    kinds: ClassVar = {"WindowMultiHeadAttention": Kind(windows=_as_said)}


class TinyViT(Located):
    model = "tiny_vit.TinyVit"
    kinds: ClassVar = {"Attention": Kind(parts=by_head, windows=_as_said, weights=None)}


def _patches(trial: Trial) -> Windows | None:
    patches, pixels = trial.entered[:2]
    if patches == 1:
        return None
    across, side = math.isqrt(patches), math.isqrt(pixels)
    return Windows(grid=(across * side, across * side), size=(side, side), shift=(0, 0))


class TNT(Located):  # a transformer of the pixels of a patch inside one of patches
    model = "tnt.TNT"
    kinds: ClassVar = {"Attention": Kind(parts=apart("qk", "v"), windows=_patches)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return int(trial.entered[0] == 1)  # pixels of a patch have none


# convolutions


def _not_coarser(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if keys are on the grid of the queries."""
    return attention.attn_drop if attention.sr is None else None


class PVTv2(Located):
    title = "timm PyramidVisionTransformerV2 (PVT v2)"
    model = "pvt_v2.PyramidVisionTransformerV2"
    kinds: ClassVar = {"Attention": Kind(parts=apart("q", "kv"), weights=_not_coarser, hidden=COARSER)}


class Twins(Located):
    model = "twins.Twins"
    kinds: ClassVar = {
        "LocallyGroupedAttn": Kind(
            weights=None, hidden="it cuts its windows, and puts them together again, inside itself"
        ),
        "GlobalSubSampleAttn": Kind(parts=apart("q", "kv"), weights=_not_coarser, hidden=COARSER),
    }


class CSATv2(Located):  # convolutions over frequencies; its last stages attend
    model = "csatv2.CSATv2"
    kinds: ClassVar = {"Attention": Kind()}


class EdgeNeXt(Located):  # cross-covariance attention in some blocks
    model = "edgenext.EdgeNeXt"
    kinds: ClassVar = {"CrossCovarianceAttn": Kind(weights=None, hidden=CHANNELS)}


class EfficientFormer(Located):  # its last blocks attend
    model = "efficientformer.EfficientFormer"
    kinds: ClassVar = {"Attention": Kind(parts=by_head, weights=None)}


class FastVit(Located):  # the larger ones attend in their last stage
    model = "fastvit.FastVit"
    kinds: ClassVar = {"Attention": Kind()}


class MetaFormer(Located):  # CAFormer's last stages attend; the other stages, and ConvFormer, have no heads
    title = "timm MetaFormer (CAFormer)"
    model = "metaformer.MetaFormer"
    kinds: ClassVar = {"Attention": Kind()}


class NextViT(Located):  # its convolutions with groups are no attention; what attends has keys on a coarser grid
    model = "nextvit.NextViT"
    kinds: ClassVar = {"EfficientAttention": Kind(parts=apart("q", "k", "v"), weights=_not_coarser, hidden=COARSER)}


class Visformer(Located):  # its last stages attend
    model = "visformer.Visformer"
    kinds: ClassVar = {"Attention": Kind()}


def _three_by_head(attention: Any, heads: int) -> Parts:
    query, key, value = weight_of(attention.pwise).unflatten(0, (heads, 3, -1)).unbind(1)
    return query, key, value


class LowFormer(Located):  # attention on a coarser grid, brought back to size by a convolution
    model = "lowformer.LowFormer"
    kinds: ClassVar = {"ConvAttention": Kind(point="o_proj", parts=_three_by_head, weights=None)}

    @classmethod
    def refuse(cls, model: Any, trial: Trial) -> None:
        if isinstance(trial.attention.o_proj, nn.Identity):
            raise UserError(
                f"{trial.name}: its output projection is one with the convolution that brings the grid back to size "
                f"(fuse_out_proj), so what a head writes is spread over places. Not supported."
            )


class CPUBone(LowFormer):
    model = "cpubone.CPUBone"


def _shared(attention: Any, heads: int) -> Parts:
    """One query for each head, one key and one value for all of them."""
    key, value = (weight_of(part.proj).expand(heads, -1, -1) for part in (attention.key, attention.value))
    return weight_of(attention.query.proj).unflatten(0, (heads, -1)), key, value


def _on_the_grid(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if queries and keys are on the grid."""
    return None if attention.kv_stride > 1 or attention.has_query_strides else attention.attn_drop


class MobileNetV5(Located):
    """timm's MobileNetV5 and the hybrids of MobileNetV4: multi-query attention, whose heads share a key and a value.

    A head is its query, and the slice of the projection that reads what it found.
    """

    model = "mobilenetv5.MobileNetV5"
    kinds: ClassVar = {
        "MultiQueryAttention2d": Kind(point="output.proj", parts=_shared, weights=_on_the_grid, hidden=COARSER)
    }

    @classmethod
    def layer_scale(cls, model: Any, site: Any) -> Tensor | None:
        scale = getattr(model.get_submodule(site.name.rpartition(".")[0]).layer_scale, "gamma", None)
        return None if scale is None else scale.detach()


class MobileNetV5Encoder(MobileNetV5):
    title = "timm MobileNetV5's encoder"
    model = "mobilenetv5.MobileNetV5Encoder"


class MobileNetV4(MobileNetV5):
    title = "timm MobileNetV4, hybrid"
    model = "mobilenetv3.MobileNetV3"

    @classmethod
    def claims(cls, model: nn.Module) -> bool:
        return super().claims(model) and any(cls.kind(part) is not None for part in model.modules())


def _levit(attention: Any, heads: int, of: Callable[[Any], Tensor] = lambda layer: weight_of(layer.linear)) -> Parts:
    """Values are wider than queries and keys; where the grid shrinks, queries have a layer of their own."""
    width = attention.key_dim
    if hasattr(attention, "qkv"):
        query, key, value = of(attention.qkv).unflatten(0, (heads, -1)).tensor_split((width, 2 * width), dim=1)
        return query, key, value
    key, value = of(attention.kv).unflatten(0, (heads, -1)).tensor_split((width,), dim=1)
    return of(attention.q.ln).unflatten(0, (heads, -1)), key, value


def _normed(layer: Any) -> Tensor:
    """(outputs, C) of a linear layer with the factor of the norm behind it."""
    factor = layer.bn.weight / (layer.bn.running_var + layer.bn.eps).sqrt()
    return weight_of(layer.linear) * factor.detach()[:, None]


class Levit(Located):
    """timm's LeViT: attention whose linear layers have a norm each, and which shrinks the grid between stages.

    A head's outputs pass an activation, channel by channel, before the projection; its gate stands behind that. In eval
    mode each norm is a factor and a shift per channel: the factor is part of a head's weights.
    """

    title = "timm LeViT"
    model = "levit.Levit"
    kinds: ClassVar = dict.fromkeys(
        ("Attention", "AttentionDownsample"), Kind(point="proj.ln.linear", parts=_levit, weights=None)
    )

    @classmethod
    def head_weights(cls, model: Any, site: HeadSite) -> HeadWeights:
        attention: Any = submodule(model, site)
        written = _normed(attention.proj.ln).mT.unflatten(0, (site.num_heads, site.head_dim))
        return HeadWeights(*_levit(attention, site.num_heads, _normed), written)
