"""Loss with and without each head, and each part of a layer's neurons."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from oracles.ablation import outcome, without


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean loss with the head removed minus mean loss of the whole model."""
    _, whole = outcome(model, images, labels)
    rises = []
    for head in range(sum(count for _, count in sites)):
        _, loss = outcome(without(model, sites, {head}), images, labels)
        rises.append((sum(loss) - sum(whole)) / len(images))
    return torch.tensor(rises, dtype=torch.float64)


def of_neurons(
    model: nn.Module, images: Tensor, labels: Tensor, mlps: list[str], bins: int
) -> Tensor:
    """(neurons of all MLPs,) rise of the mean loss without all neurons of the part that a neuron is in."""
    _, whole = outcome(model, images, labels)
    rises: list[float] = []
    for name in mlps:
        width = model.get_submodule(f"{name}.fc2").in_features
        for part in range(bins):
            smaller = copy.deepcopy(model)
            members = [neuron for neuron in range(width) if int(neuron * bins / width) == part]
            with torch.no_grad():
                smaller.get_submodule(f"{name}.fc2").weight[:, members] = 0
            _, loss = outcome(smaller, images, labels)
            rises += [(sum(loss) - sum(whole)) / len(images)] * len(members)
    return torch.tensor(rises, dtype=torch.float64)
