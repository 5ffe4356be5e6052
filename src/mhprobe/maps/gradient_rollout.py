"""Rollout of attention weighted by how the explained logit depends on it: fuse_h (A * d logit / d A)+.

As in the vit-explain package's gradient rollout (its fusion, the mean, may be changed), chained as in ``rollout``.

Shapes: B images, W windows, H heads, K places of a window.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.gates import gates_of
from mhprobe.maps.base import MapKind, as_grid, readout
from mhprobe.maps.rollout import Fusion, chain, check, fuse, transition
from mhprobe.recording.lrp import explained_logit
from mhprobe.recording.state import inspecting, prefix_of, unfused, usable


class GradientRollout(MapKind):
    """The map "gradient rollout" (B, h, w) over the first block's grid.

    fusion, discard: as in Rollout. target: "top1" explains the largest logit, "label" the label's.
    """

    def __init__(self, fusion: Fusion = "mean", discard: float = 0.0, target: str = "top1") -> None:
        check(fusion, discard, "gradient_rollout")
        self.fusion, self.discard, self.target = fusion, discard, target

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        layout = gates_of(model).layout
        attn, slopes = attention_slopes(model, images, labels, self.target)
        rows = [
            transition(fuse((a * slope).clamp(min=0), self.fusion), site, self.discard)
            for site, a, slope in zip(layout.sites, attn, slopes, strict=True)
        ]
        chained = chain(layout, rows)
        return {"gradient rollout": as_grid(readout(chained, layout.sites[-1]), layout.sites[0])}


def attention_slopes(
    model: nn.Module, images: Tensor, labels: Tensor | None, target: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Per site the attention weights and the slopes of the explained logit along them, each (B, W, H, K, K)."""
    sites = gates_of(model).layout.sites
    modules = dict(model.named_modules())
    prefix = prefix_of(modules, sites[0])
    attn: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        weights = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
        attn.append(weights)
        return (weights, *args[1:])

    with inspecting(model, gradients=True), contextlib.ExitStack() as stack:
        for site in sites:
            attention: Any = modules[prefix + site.name]
            stack.enter_context(unfused(attention, site.name))
            stack.callback(attention.attn_drop.register_forward_pre_hook(keep).remove)
        logits = model(usable(images))
        slopes = torch.autograd.grad(explained_logit(logits, labels, target).sum(), attn)
    per_window = functools.partial(Tensor.unflatten, dim=0, sizes=(len(images), -1))
    return [per_window(a.detach()) for a in attn], [per_window(slope) for slope in slopes]
