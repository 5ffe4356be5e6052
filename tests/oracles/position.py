"""Count, for every offset, how often it has the largest weight and how often it could have had."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) largest share of all queries, among offsets that exist for a quarter of them."""
    return torch.tensor([best[0] for best in favourites(model, images, sites)], dtype=torch.float64)


def favourites(
    model: nn.Module, images: Tensor, sites: list[tuple[str, int]]
) -> list[tuple[float, int, int]]:
    """Per head (share, dy, dx)."""
    found = []
    for site in sites_of(model, images, sites):
        exists: Counter = Counter()
        for t in site.patches:
            for k in site.keys(t):
                exists[offset(site, t, k)] += 1
        for h in range(site.heads):
            hits: Counter = Counter()
            for image in site.maps:
                for t in site.patches:
                    keys, row = site.keys(t), image[h, t].tolist()
                    top = max(row[k] for k in keys)
                    largest = [k for k in keys if row[k] == top]
                    for k in largest:
                        hits[offset(site, t, k)] += 1 / len(largest)
            shares = [
                (-hits[o] / len(site.patches) / len(images), o[0] ** 2 + o[1] ** 2, *o)
                for o in exists
                if exists[o] >= 0.25 * len(site.patches)
            ]
            share, _, dy, dx = min(shares)
            found.append((-share, dy, dx))
    return found


def offset(site, query, key):
    (yq, xq), (yk, xk) = site.cells[query], site.cells[key]
    return yk - yq, xk - xq
