"""Loss with all heads of a layer but one removed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.ablation import outcome, without


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean loss of the whole model minus mean loss with this head as the only one of its layer."""
    _, whole = outcome(model, images, labels)
    found, first = [], 0
    for _, count in sites:
        layer = set(range(first, first + count))
        for head in sorted(layer):
            _, loss = outcome(without(model, sites, layer - {head}), images, labels)
            found.append((sum(whole) - sum(loss)) / len(images))
        first += count
    return torch.tensor(found, dtype=torch.float64)
