"""What stands in a head's place, by a forward with plain hooks: no gates, one mask at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


def outputs(model: nn.Module, names: Sequence[str], images: Tensor) -> list[Tensor]:
    """Per site (B, windows, tokens, channels): what enters the projections."""
    seen: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack, torch.no_grad():
        for name in names:
            hook = lambda _module, args, name=name: seen.__setitem__(name, args[0].clone())  # noqa: E731
            stack.callback(model.get_submodule(name).proj.register_forward_pre_hook(hook).remove)
        model(images)
    return [seen[name].unflatten(0, (len(images), -1)) for name in names]


@contextlib.contextmanager
def replaced(
    model: nn.Module, sites: Sequence[tuple[str, int]], off: set[int], instead: Sequence[Tensor]
) -> Iterator:
    """Heads ``off`` (numbered through all sites) give what ``instead`` has for their channels, of every row."""
    with contextlib.ExitStack() as stack:
        first = 0
        for (name, count), other in zip(sites, instead, strict=True):
            heads = [number - first for number in off if first <= number < first + count]

            def hook(_module, args, heads=heads, other=other, count=count):
                x = args[0].clone().unflatten(-1, (count, -1))
                there = (
                    other.expand(*other.shape[:3], args[0].shape[-1])
                    .flatten(0, 1)
                    .unflatten(-1, (count, -1))
                )
                for head in heads:
                    x[:, :, head] = there[:, :, head].repeat(len(x) // len(there), 1, 1)
                return (x.flatten(-2), *args[1:])

            stack.callback(model.get_submodule(name).proj.register_forward_pre_hook(hook).remove)
            first += count
        yield


def logits(model, sites, off, instead, images: Tensor) -> Tensor:
    with replaced(model, sites, off, instead), torch.no_grad():
        return model(images)
