"""Weight times distance, pair by pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images and patch queries of the distance to where they look, in pixels; rows made to sum to 1."""
    return distances(model, images, sites, renormalise=True)


def distances(
    model: nn.Module, images: Tensor, sites: list[tuple[str, int]], renormalise: bool
) -> Tensor:
    means = []
    for site in sites_of(model, images, sites):
        total = torch.zeros(len(images), site.heads, dtype=torch.float64)
        for t in site.patches:
            keys = site.keys(t)
            far = sum(site.maps[:, :, t, k] * site.distance(t, k) for k in keys)
            mass = sum(site.maps[:, :, t, k] for k in keys)
            total += far / mass if renormalise else far
        means.append(total.mean(0) / len(site.patches))
    return torch.cat(means)
