"""timm's MobileNetV5 and the hybrids of MobileNetV4: multi-query attention, whose heads share one key and one value.

A head is its query, and the slice of the projection that reads what it found.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from mhprobe.backbones.parts.located import COARSER, Kind, Located, Parts, path_of, weight_of


def shared(attention: Any, heads: int) -> Parts:
    """One query for each head, one key and one value for all of them."""
    key, value = (weight_of(part.proj).expand(heads, -1, -1) for part in (attention.key, attention.value))
    return weight_of(attention.query.proj).unflatten(0, (heads, -1)), key, value


def full(attention: Any) -> nn.Module | None:
    """Return the module that attention weights pass, if queries and keys are on the grid."""
    return None if attention.kv_stride > 1 or attention.has_query_strides else attention.attn_drop


class MobileNetV5(Located):
    title = "timm MobileNetV5"
    model = "timm.models.mobilenetv5.MobileNetV5"
    kinds: ClassVar = {
        "timm.layers.attention2d.MultiQueryAttention2d": Kind(
            point="output.proj", parts=shared, weights=full, hidden=COARSER
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
