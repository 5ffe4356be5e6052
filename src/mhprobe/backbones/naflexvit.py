"""timm's NaFlexVit, a ViT for images of any size (here of one), and the vision towers of DeepSeek and Qwen3."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.eva import Eva
from mhprobe.backbones.parts.attention import no_norm_between
from mhprobe.backbones.parts.located import Kind, Located, Parts, Trial
from mhprobe.heads import HeadSite


def _parts(attention: Any, heads: int) -> Parts:
    site = HeadSite("", 0, 0, heads, attention.proj.in_features // heads)
    return Eva.query_key_value(attention, site)  # of one layer or three


TOKENS = {
    "timm.layers.attention.Attention": Kind(),
    "timm.layers.attention.AttentionRope": Kind(parts=_parts),
    "timm.models.eva.EvaAttention": Kind(parts=_parts),
}


class NaFlexVit(Located):
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
