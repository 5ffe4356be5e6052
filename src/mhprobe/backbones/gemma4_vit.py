"""timm's Gemma 4 vision towers, alone and with a classifier."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Parts


def _parts(attention: Any, heads: int) -> Parts:
    query, key, value = (
        part.linear.weight.detach().unflatten(0, (-1, attention.head_dim))
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if (shared := heads // len(key)) > 1:
        key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
    return query, key, value


class Gemma4(Located):
    title = "timm Gemma 4 ViT"
    model = "timm.models.gemma4_vit.Gemma4VitEncoder"
    kinds: ClassVar = {"timm.models.gemma4_vit.Gemma4Attention": Kind(point="o_proj", output="linear", parts=_parts)}


class Gemma4Classifier(Gemma4):
    model = "timm.models.gemma4_vit.Gemma4VitClassifier"
