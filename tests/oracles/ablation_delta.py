"""Loss with and without each head."""

from __future__ import annotations

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
