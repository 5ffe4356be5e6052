"""timm's DaVit: windows of tokens, then attention between channels."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from mhprobe.backbones.parts.located import CHANNELS, Kind, Located, Parts, Trial, never, packed
from mhprobe.heads import Windows


def _windows(trial: Trial) -> Windows:
    return Windows(grid=trial.grid_behind_channels, size=trial.block.window_size, shift=(0, 0))


def _turned(attention: Any, heads: int) -> Parts:
    """Keys meet values, and what is mixed with their weights are the queries."""
    query, key, value = packed(attention, heads)
    return key, value, query


def _softmaxed(attention: Any) -> nn.Module:
    return attention.softmax[1]


class DaViT(Located):
    title = "timm DaVit"
    model = "timm.models.davit.DaVit"
    kinds: ClassVar = {
        "timm.models.davit.WindowAttention": Kind(windows=_windows, weights=_softmaxed),
        "timm.models.davit.ChannelAttention": Kind(parts=_turned, weights=never, hidden=CHANNELS),
        "timm.models.davit.ChannelAttentionV2": Kind(weights=never, hidden=CHANNELS, heads="groups"),
    }

    @classmethod
    def prepare(cls, model: Any) -> None:
        super().prepare(model)
        for module in model.modules():
            if isinstance(getattr(module, "softmax", None), nn.Softmax):
                module.softmax = nn.Sequential(module.softmax, nn.Identity())  # room to look, behind it
