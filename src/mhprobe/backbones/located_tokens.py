"""timm's models of tokens in a line that a ViT's own family does not claim: families that are one row each."""

import math
from typing import Any, ClassVar

from mhprobe.backbones.eva import Eva
from mhprobe.backbones.parts.attention import no_norm_between
from mhprobe.backbones.parts.located import CHANNELS, COARSER, Kind, Located, Parts, Trial, apart, never, weight_of
from mhprobe.heads import HeadSite


def _of_one_layer_or_three(attention: Any, heads: int) -> Parts:
    site = HeadSite("", 0, 0, heads, attention.proj.in_features // heads)
    return Eva.query_key_value(attention, site)


TOKENS = {
    "timm.layers.attention.Attention": Kind(),
    "timm.layers.attention.AttentionRope": Kind(parts=_of_one_layer_or_three),
    "timm.models.eva.EvaAttention": Kind(parts=_of_one_layer_or_three),
}


class NaFlexVit(Located):
    """timm's NaFlexVit, a ViT for images of any size (here of one)."""

    title = "timm NaFlexVit"
    model = "timm.models.naflexvit.NaFlexVit"
    kinds: ClassVar = TOKENS
    aside = ("timm.layers.attention_pool.AttentionPoolLatent",)

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return model.num_prefix_tokens

    @classmethod
    def refuse(cls, model: Any, trial: Trial) -> None:
        no_norm_between(trial.name, trial.attention)


class DeepSeek(Located):
    title = "timm DeepSeek ViT"
    model = "timm.models.deepseek_vit.DeepseekVitEncoder"
    kinds: ClassVar = TOKENS


class DeepSeekClassifier(DeepSeek):
    model = "timm.models.deepseek_vit.DeepseekVitClassifier"


class Qwen3(Located):
    title = "timm Qwen3 ViT"
    model = "timm.models.qwen3_vit.Qwen3VitEncoder"
    kinds: ClassVar = TOKENS


class Qwen3Classifier(Qwen3):
    model = "timm.models.qwen3_vit.Qwen3VitClassifier"


class PiT(Located):
    """timm's PoolingVisionTransformer: a ViT in three stages."""

    title = "timm PoolingVisionTransformer (PiT)"
    model = "timm.models.pit.PoolingVisionTransformer"
    kinds: ClassVar = TOKENS

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return model.cls_token.shape[1]  # one, or with a distillation token two


class CrossVit(Located):
    """timm's CrossVit: two ViTs side by side. The attention from one's class token to the other is not gated."""

    title = "timm CrossVit"
    model = "timm.models.crossvit.CrossVit"
    kinds: ClassVar = TOKENS
    aside = ("timm.models.crossvit.CrossAttention", "timm.models.crossvit.CrossAttentionBlock")

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return 1


class ConViT(Located):
    """timm's ConVit: attention gated between content and position, then a ViT's."""

    title = "timm ConVit"
    model = "timm.models.convit.ConVit"
    kinds: ClassVar = {"timm.models.convit.GPSA": Kind(parts=apart("qk", "v")), "timm.models.convit.MHSA": Kind()}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        tokens = trial.entered[1]  # the class token comes in behind the first blocks
        return tokens - math.isqrt(tokens) ** 2


class MViTv2(Located):
    """timm's MultiScaleVit: MViTv2, whose queries, keys and values are pooled."""

    title = "timm MultiScaleVit (MViTv2)"
    model = "timm.models.mvitv2.MultiScaleVit"
    kinds: ClassVar = {"timm.models.mvitv2.MultiScaleAttention": Kind(weights=never, hidden=COARSER)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return model.num_prefix_tokens


def _grouped(attention: Any, heads: int) -> Parts:
    query, key, value = (
        part.linear.weight.detach().unflatten(0, (-1, attention.head_dim))
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if (shared := heads // len(key)) > 1:
        key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
    return query, key, value


class Gemma4(Located):
    """timm's Gemma 4 vision towers."""

    title = "timm Gemma 4 ViT"
    model = "timm.models.gemma4_vit.Gemma4VitEncoder"
    kinds: ClassVar = {"timm.models.gemma4_vit.Gemma4Attention": Kind(point="o_proj", output="linear", parts=_grouped)}


class Gemma4Classifier(Gemma4):
    model = "timm.models.gemma4_vit.Gemma4VitClassifier"


FACTORISED = "it is factorised: keys meet values first, and no weights come to be"


class CoaT(Located):
    """timm's CoaT: factorised attention beside a convolution of each head's values."""

    title = "timm CoaT"
    model = "timm.models.coat.CoaT"
    kinds: ClassVar = {"timm.models.coat.FactorAttnConvRelPosEnc": Kind(weights=never, hidden=FACTORISED)}

    @classmethod
    def prefix(cls, model: Any, trial: Trial) -> int:
        return 1


class Xcit(Located):
    """timm's Xcit: cross-covariance attention. The class-attention blocks at the end have no gates."""

    title = "timm Xcit (XCiT)"
    model = "timm.models.xcit.Xcit"
    kinds: ClassVar = {"timm.models.xcit.XCA": Kind(weights=never, hidden=CHANNELS)}
    aside = ("timm.models.cait.ClassAttn",)


def _outlook(attention: Any, heads: int) -> Parts:
    """A patch says by itself how its neighbours are mixed: one layer stands where queries and keys are elsewhere."""
    weights = weight_of(attention.attn).unflatten(0, (heads, -1))
    return weights, weights, weight_of(attention.v).unflatten(0, (heads, -1))


OUTLOOK = "each patch mixes its neighbours with weights of its own, and there are no keys"


class Volo(Located):
    """timm's VOLO: outlook attention, then attention. The class attention at the end has no gates."""

    title = "timm VOLO"
    model = "timm.models.volo.VOLO"
    kinds: ClassVar = {
        "timm.models.volo.OutlookAttention": Kind(parts=_outlook, weights=never, hidden=OUTLOOK),
        "timm.models.volo.Attention": Kind(),
    }
    aside = ("timm.models.volo.ClassAttention",)
