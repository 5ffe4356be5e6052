"""timm's LeViT: attention whose linear layers have a norm each, and which shrinks the grid between stages.

A head's outputs pass an activation, channel by channel, before the projection; its gate stands behind that. In eval
mode each norm is a factor and a shift per channel: the factor is part of a head's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from mhprobe.backbones.base import submodule
from mhprobe.backbones.parts.located import Kind, Located, Parts, never, weight_of
from mhprobe.heads import HeadSite, HeadWeights


def bare(layer: Any) -> Tensor:
    """(outputs, C) without the norm behind it."""
    return weight_of(layer.linear)


def normed(layer: Any) -> Tensor:
    """(outputs, C) with the factor of the norm behind it."""
    factor = layer.bn.weight / (layer.bn.running_var + layer.bn.eps).sqrt()
    return bare(layer) * factor.detach()[:, None]


def parts(attention: Any, heads: int, of: Callable[[Any], Tensor] = bare) -> Parts:
    """Values are wider than queries and keys; where the grid shrinks, queries have a layer of their own."""
    width = attention.key_dim
    if hasattr(attention, "qkv"):
        query, key, value = of(attention.qkv).unflatten(0, (heads, -1)).tensor_split((width, 2 * width), dim=1)
        return query, key, value
    key, value = of(attention.kv).unflatten(0, (heads, -1)).tensor_split((width,), dim=1)
    return of(attention.q.ln).unflatten(0, (heads, -1)), key, value


KIND = Kind(point="proj.ln.linear", parts=parts, weights=never)


class Levit(Located):
    title = "timm LeViT"
    model = "timm.models.levit.Levit"
    kinds: ClassVar = {f"timm.models.levit.{name}": KIND for name in ("Attention", "AttentionDownsample")}

    @classmethod
    def head_weights(cls, model: Any, site: HeadSite) -> HeadWeights:
        attention: Any = submodule(model, site)
        written = normed(attention.proj.ln).mT.unflatten(0, (site.num_heads, site.head_dim))
        return HeadWeights(*parts(attention, site.num_heads, normed), written)
