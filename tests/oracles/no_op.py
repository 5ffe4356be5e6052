"""|dL/dA| key by key, special or not, from one backward pass per image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.attention import dense, norms
from oracles.token_kinds import kinds, level


def special_of(model: nn.Module) -> str:
    return "cls" if getattr(model, "cls_token", None) is not None else "high_norm"


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean |dL/dA| on special keys over that on the others."""
    slopes = gradients(model, images, labels, sites)
    ratios = []
    for (name, _), slope, norm in zip(sites, slopes, norms(model, images, sites), strict=True):
        site = dense(model, images, name, slope)
        special, other = [], []
        for n in range(len(images)):
            high = level(site, norm[n], threshold=3.0)
            for t, keys in enumerate(site.support):
                for k in keys:
                    size = site.maps[n, :, t, k].abs()
                    (
                        special if special_of(model) in kinds(site, t, k, norm[n], high) else other
                    ).append(size)
        whole = torch.stack(other).mean(0)
        ratios.append(
            torch.stack(special).mean(0) / whole if special else torch.full_like(whole, torch.nan)
        )
    return torch.cat(ratios)


def gradients(
    model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]
) -> list[Tensor]:
    """Per site (N, windows, H, K, K) slope of each image's own loss."""
    per_image: list[list[Tensor]] = []
    for n in range(len(images)):
        kept: list[Tensor] = []
        handles, fused = [], []
        for name, _ in sites:
            attention = model.get_submodule(name)
            fused.append((attention, attention.fused_attn))
            attention.fused_attn = False

            def keep(_module, args, kept=kept):
                kept.append(
                    args[0].detach().requires_grad_() if not args[0].requires_grad else args[0]
                )
                return (kept[-1],)

            handles.append(attention.attn_drop.register_forward_pre_hook(keep))
        loss = nn.functional.cross_entropy(model(images[n : n + 1]), labels[n : n + 1])
        per_image.append(list(torch.autograd.grad(loss, kept)))
        for handle in handles:
            handle.remove()
        for attention, before in fused:
            attention.fused_attn = before
    return [torch.stack(each) for each in zip(*per_image, strict=True)]
