"""Second differences of the loss over two heads' switches, by removing them; pairs of the most important heads."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from oracles import gate_importance
from oracles.ablation import outcome, without


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean interaction of all pairs among the eight heads of largest importance; NaN elsewhere."""
    importance = gate_importance.value(model, images, labels, sites).tolist()
    chosen = sorted(range(len(importance)), key=lambda head: -importance[head])[:8]

    def mean_loss(heads: set[int]) -> float:
        return sum(outcome(without(model, sites, heads), images, labels)[1]) / len(images)

    none = mean_loss(set())
    alone = {head: mean_loss({head}) for head in chosen}
    found = torch.full((len(importance),) * 2, torch.nan, dtype=torch.float64)
    for a, b in itertools.combinations(chosen, 2):
        found[a, b] = found[b, a] = mean_loss({a, b}) - alone[a] - alone[b] + none
    return found
