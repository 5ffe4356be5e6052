"""The mass at each distance from the argmax key, in a dictionary; then NumPy's interpolation."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) radius in pixels that holds half of the mean profile's mass off the argmax key."""
    return radii(model, images, sites, 0.5)


def radii(model: nn.Module, images: Tensor, sites: list[tuple[str, int]], share: float) -> Tensor:
    found = []
    for site in sites_of(model, images, sites):
        away = {(t, k): round(site.distance(t, k), 6) for t in site.patches for k in site.patches}
        for h in range(site.heads):
            mass: dict[float, float] = defaultdict(float)
            for image in site.maps:
                for t in site.patches:
                    keys = site.keys(t)
                    attention = image[h, t, keys]
                    row = (attention / attention.sum()).tolist()
                    most = attention.max().item()
                    largest = [
                        k for k, a in zip(keys, attention.tolist(), strict=True) if a == most
                    ]
                    for top in largest:
                        for k, weight in zip(keys, row, strict=True):
                            mass[away[top, k]] += 0.0 if k == top else weight / len(largest)
            reach = max(mass)
            for y in range(
                site.grid[0]
            ):  # a distance that occurs on the grid and has no mass is read too
                for x in range(site.grid[1]):
                    if (d := round(math.hypot(y * site.patch[0], x * site.patch[1]), 6)) <= reach:
                        mass[d] += 0.0
            distance = sorted(mass)
            inside = np.cumsum([mass[d] for d in distance]) / sum(mass.values())
            found.append(float(np.interp(share, inside, distance)))
    return torch.tensor(found, dtype=torch.float64)
