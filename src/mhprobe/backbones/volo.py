"""timm's VOLO: outlook attention, then attention. The class attention at the end has no gates."""

from __future__ import annotations

from typing import Any, ClassVar

from mhprobe.backbones.parts.located import Kind, Located, Parts, never, weight_of


def _outlook(attention: Any, heads: int) -> Parts:
    """A patch says by itself how its neighbours are mixed: one layer stands where queries and keys are elsewhere."""
    weights = weight_of(attention.attn).unflatten(0, (heads, -1))
    return weights, weights, weight_of(attention.v).unflatten(0, (heads, -1))


OUTLOOK = "each patch mixes its neighbours with weights of its own, and there are no keys"


class Volo(Located):
    title = "timm VOLO"
    model = "timm.models.volo.VOLO"
    kinds: ClassVar = {
        "timm.models.volo.OutlookAttention": Kind(parts=_outlook, weights=never, hidden=OUTLOOK),
        "timm.models.volo.Attention": Kind(),
    }
    aside = ("timm.models.volo.ClassAttention",)
