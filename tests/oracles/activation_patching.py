"""Patching by hand: hooks in front of the projections, one head at a time, every run through the whole model.

Who gets which twin is drawn by a hash; the hash is the package's, since any other draw would be
another question.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mhprobe.measures.parts.hashing import image_numbers, mixed


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean effect over mean (clean - corrupted), denoising, twins of another class among the images."""
    other = partners(images, labels)
    effect_BA, way_B = denoising(model, images, images[other], labels, labels[other], sites)
    return effect_BA.mean(0) / way_B.mean()


def partners(images: Tensor, labels: Tensor) -> list[int]:
    """Per image that of another class which is drawn lowest."""
    number = image_numbers(images)
    chosen = []
    for i in range(len(images)):
        drawn = [int(mixed(number[i] ^ mixed(number[j]))) for j in range(len(images))]
        chosen.append(
            min((j for j in range(len(images)) if labels[j] != labels[i]), key=drawn.__getitem__)
        )
    return chosen


def denoising(
    model: nn.Module,
    clean: Tensor,
    twin: Tensor,
    labels: Tensor,
    wrong: Tensor,
    sites: list[tuple[str, int]],
) -> tuple[Tensor, Tensor]:
    """(B, A) logit differences that heads of the clean run add on the twins, and (B,) the whole way."""
    seen = outputs(model, clean, sites)
    there, before = (difference(model(x).detach(), labels, wrong) for x in (clean, twin))
    effects = []
    for name, heads in sites:
        for head in range(heads):
            after = difference(with_head(model, twin, name, heads, head, seen[name]), labels, wrong)
            effects.append(after - before)
    return torch.stack(effects, 1), there - before


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, sites: list[tuple[str, int]]) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).proj.register_forward_pre_hook(
            lambda _, args, name=name: seen.update({name: args[0]})
        )
        for name, _ in sites
    ]
    model(images)
    for handle in handles:
        handle.remove()
    return seen


@torch.no_grad()
def with_head(
    model: nn.Module,
    images: Tensor,
    name: str,
    heads: int,
    head: int,
    theirs: Tensor,
    share: float = 1.0,
) -> Tensor:
    """Logits with one head moved towards ``theirs`` by a share of the way."""

    def move(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        z = args[0].clone()
        part = slice(head * z.shape[-1] // heads, (head + 1) * z.shape[-1] // heads)
        z[..., part] += share * (theirs[..., part] - z[..., part])
        return (z,)

    handle = model.get_submodule(name).proj.register_forward_pre_hook(move)
    logits = model(images)
    handle.remove()
    return logits


def difference(logits: Tensor, labels: Tensor, wrong: Tensor) -> Tensor:
    rows = torch.arange(len(logits))
    return logits[rows, labels] - logits[rows, wrong]
