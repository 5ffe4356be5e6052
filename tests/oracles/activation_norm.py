"""Wanda's score of every single weight of the layer that reads the heads, and the length of a head's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) norm over a unit's weights of |W_ij| times the root mean square of input j; of an MLP per neuron."""
    found = []
    for name, heads in sites:
        module = model.get_submodule(name)
        layer = module.fc2 if hasattr(module, "fc2") else module.proj
        seen = []
        handle = layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        with torch.no_grad():
            for image in images:
                model(image[None])
        handle.remove()
        rows = torch.cat([each.flatten(0, -2) for each in seen])
        scores = layer.weight.detach().abs() * rows.square().mean(0).sqrt()
        found += [part.norm() for part in scores.split(scores.shape[1] // heads, dim=1)]
    return torch.stack(found)
