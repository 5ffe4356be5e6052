"""Squared slopes of the loss along head gates: one image at a time, autograd on explicit gate scalars."""

from __future__ import annotations

from torch import Tensor, nn

from oracles.gate_importance import slopes


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images of slope squared."""
    return slopes(model, images, labels, sites).square().mean(0)
