"""timm's networks of convolutions whose last stages, or some blocks, attend: families that are one row each."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from mhprobe.backbones.base import submodule
from mhprobe.backbones.parts.located import (
    CHANNELS,
    COARSER,
    Kind,
    Located,
    Parts,
    Trial,
    apart,
    by_head,
    never,
    path_of,
    weight_of,
)
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite, HeadWeights


def _not_coarser(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if keys are on the grid of the queries."""
    return attention.attn_drop if attention.sr is None else None


class PVTv2(Located):
    """timm's PyramidVisionTransformerV2: keys on a coarser grid."""

    title = "timm PyramidVisionTransformerV2 (PVT v2)"
    model = "timm.models.pvt_v2.PyramidVisionTransformerV2"
    kinds: ClassVar = {
        "timm.models.pvt_v2.Attention": Kind(parts=apart("q", "kv"), weights=_not_coarser, hidden=COARSER)
    }


class Twins(Located):
    title = "timm Twins"
    model = "timm.models.twins.Twins"
    kinds: ClassVar = {
        "timm.models.twins.LocallyGroupedAttn": Kind(
            weights=never, hidden="it cuts its windows, and puts them together again, inside itself"
        ),
        "timm.models.twins.GlobalSubSampleAttn": Kind(parts=apart("q", "kv"), weights=_not_coarser, hidden=COARSER),
    }


class CSATv2(Located):
    """Convolutions over frequencies; its last stages attend."""

    title = "timm CSATv2"
    model = "timm.models.csatv2.CSATv2"
    kinds: ClassVar = {"timm.layers.attention.Attention": Kind()}


class EdgeNeXt(Located):
    """Cross-covariance attention in some blocks."""

    title = "timm EdgeNeXt"
    model = "timm.models.edgenext.EdgeNeXt"
    kinds: ClassVar = {"timm.models.edgenext.CrossCovarianceAttn": Kind(weights=never, hidden=CHANNELS)}


class EfficientFormer(Located):
    """Its last blocks attend."""

    title = "timm EfficientFormer"
    model = "timm.models.efficientformer.EfficientFormer"
    kinds: ClassVar = {"timm.models.efficientformer.Attention": Kind(parts=by_head, weights=never)}


class FastVit(Located):
    """The larger ones attend in their last stage."""

    title = "timm FastVit"
    model = "timm.models.fastvit.FastVit"
    kinds: ClassVar = {"timm.models.fastvit.Attention": Kind()}


class MetaFormer(Located):
    """CAFormer's last stages attend; the other stages, and ConvFormer, have no heads."""

    title = "timm MetaFormer (CAFormer)"
    model = "timm.models.metaformer.MetaFormer"
    kinds: ClassVar = {"timm.models.metaformer.Attention": Kind()}


class NextViT(Located):
    """Its convolutions with groups are no attention; what attends has keys on a coarser grid."""

    title = "timm NextViT"
    model = "timm.models.nextvit.NextViT"
    kinds: ClassVar = {
        "timm.models.nextvit.EfficientAttention": Kind(parts=apart("q", "k", "v"), weights=_not_coarser, hidden=COARSER)
    }


class Visformer(Located):
    """Its last stages attend."""

    title = "timm Visformer"
    model = "timm.models.visformer.Visformer"
    kinds: ClassVar = {"timm.models.visformer.Attention": Kind()}


def _three_by_head(attention: Any, heads: int) -> Parts:
    query, key, value = weight_of(attention.pwise).unflatten(0, (heads, 3, -1)).unbind(1)
    return query, key, value


class LowFormer(Located):
    """timm's LowFormer: attention on a coarser grid, brought back to size by a convolution."""

    title = "timm LowFormer"
    model = "timm.models.lowformer.LowFormer"
    kinds: ClassVar = {"timm.models.lowformer.ConvAttention": Kind(point="o_proj", parts=_three_by_head, weights=never)}

    @classmethod
    def refuse(cls, model: Any, trial: Trial) -> None:
        if isinstance(trial.attention.o_proj, nn.Identity):
            raise UserError(
                f"{trial.name}: its output projection is one with the convolution that brings the grid back to size "
                f"(fuse_out_proj), so what a head writes is spread over places. Not supported."
            )


class CPUBone(LowFormer):
    title = "timm CPUBone"
    model = "timm.models.cpubone.CPUBone"
    kinds: ClassVar = {"timm.models.cpubone.ConvAttention": Kind(point="o_proj", parts=_three_by_head, weights=never)}


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

    title = "timm MobileNetV5"
    model = "timm.models.mobilenetv5.MobileNetV5"
    kinds: ClassVar = {
        "timm.layers.attention2d.MultiQueryAttention2d": Kind(
            point="output.proj", parts=_shared, weights=_on_the_grid, hidden=COARSER
        )
    }

    @classmethod
    def layer_scale(cls, model: Any, site: Any) -> Tensor | None:
        scale = getattr(model.get_submodule(site.name.rpartition(".")[0]).layer_scale, "gamma", None)
        return None if scale is None else scale.detach()


class MobileNetV5Encoder(MobileNetV5):
    title = "timm MobileNetV5's encoder"
    model = "timm.models.mobilenetv5.MobileNetV5Encoder"


class MobileNetV4(MobileNetV5):
    title = "timm MobileNetV4, hybrid"
    model = "timm.models.mobilenetv3.MobileNetV3"

    @classmethod
    def claims(cls, model: nn.Module) -> bool:
        return super().claims(model) and any(path_of(type(part)) in cls.kinds for part in model.modules())


def _bare(layer: Any) -> Tensor:
    """(outputs, C) without the norm behind it."""
    return weight_of(layer.linear)


def _normed(layer: Any) -> Tensor:
    """(outputs, C) with the factor of the norm behind it."""
    factor = layer.bn.weight / (layer.bn.running_var + layer.bn.eps).sqrt()
    return _bare(layer) * factor.detach()[:, None]


def _levit(attention: Any, heads: int, of: Callable[[Any], Tensor] = _bare) -> Parts:
    """Values are wider than queries and keys; where the grid shrinks, queries have a layer of their own."""
    width = attention.key_dim
    if hasattr(attention, "qkv"):
        query, key, value = of(attention.qkv).unflatten(0, (heads, -1)).tensor_split((width, 2 * width), dim=1)
        return query, key, value
    key, value = of(attention.kv).unflatten(0, (heads, -1)).tensor_split((width,), dim=1)
    return of(attention.q.ln).unflatten(0, (heads, -1)), key, value


_LEVIT = Kind(point="proj.ln.linear", parts=_levit, weights=never)


class Levit(Located):
    """timm's LeViT: attention whose linear layers have a norm each, and which shrinks the grid between stages.

    A head's outputs pass an activation, channel by channel, before the projection; its gate stands behind that. In eval
    mode each norm is a factor and a shift per channel: the factor is part of a head's weights.
    """

    title = "timm LeViT"
    model = "timm.models.levit.Levit"
    kinds: ClassVar = {f"timm.models.levit.{name}": _LEVIT for name in ("Attention", "AttentionDownsample")}

    @classmethod
    def head_weights(cls, model: Any, site: HeadSite) -> HeadWeights:
        attention: Any = submodule(model, site)
        written = _normed(attention.proj.ln).mT.unflatten(0, (site.num_heads, site.head_dim))
        return HeadWeights(*_levit(attention, site.num_heads, _normed), written)
