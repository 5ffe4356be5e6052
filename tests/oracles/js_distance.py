"""The divergence of every pair of rows, with SciPy."""

from __future__ import annotations

import torch
from scipy.spatial import distance
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean over images and queries of the divergence / ln 2 between heads of a layer, NaN between layers."""
    return divergences(model, images, sites, lambda a, b: a == b)


def divergences(model: nn.Module, images: Tensor, sites: list[tuple[str, int]], compared) -> Tensor:
    """The same for the layers a <= b that ``compared(a, b)`` names. SciPy gives the root of the divergence."""
    found = sites_of(model, images, sites)
    heads = [(number, site, h) for number, site in enumerate(found) for h in range(site.heads)]
    result = torch.full((len(heads), len(heads)), torch.nan, dtype=torch.float64)
    for i, (a, site_a, head_a) in enumerate(heads):
        for j, (b, site_b, head_b) in enumerate(heads):
            if i <= j and compared(a, b):
                p, q = site_a.maps[:, head_a].flatten(0, 1).numpy(), site_b.maps[:, head_b].flatten(0, 1).numpy()
                result[i, j] = result[j, i] = float((distance.jensenshannon(p, q, base=2, axis=1) ** 2).mean())
    return result
