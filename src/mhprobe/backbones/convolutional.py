"""timm's networks of convolutions whose last stages, or some blocks, attend: families that are one row each."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.backbones.parts.located import CHANNELS, COARSER, Kind, Located, apart, by_head, never
from mhprobe.backbones.pvt_v2 import full


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
        "timm.models.nextvit.EfficientAttention": Kind(parts=apart("q", "k", "v"), weights=full, hidden=COARSER)
    }


class Visformer(Located):
    """Its last stages attend."""

    title = "timm Visformer"
    model = "timm.models.visformer.Visformer"
    kinds: ClassVar = {"timm.models.visformer.Attention": Kind()}
