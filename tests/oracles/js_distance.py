"""The divergence of every pair of rows, with SciPy."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import distance
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A, A) mean over images and queries of the divergence / ln 2 between heads of a layer, NaN between layers."""
    return divergences(model, images, sites, lambda a, b: a == b)


def divergences(model: nn.Module, images: Tensor, sites: list[tuple[str, int]], compared) -> Tensor:
    """The same for the layers a <= b that ``compared(a, b)`` names.

    SciPy gives the root of the divergence.
    """
    found = sites_of(model, images, sites)
    heads = [(number, site, h) for number, site in enumerate(found) for h in range(site.heads)]
    result = torch.full((len(heads), len(heads)), torch.nan, dtype=torch.float64)
    for i, (a, site_a, head_a) in enumerate(heads):
        for j, (b, site_b, head_b) in enumerate(heads):
            if i <= j and compared(a, b):
                p, q = (
                    site_a.maps[:, head_a].flatten(0, 1).numpy(),
                    site_b.maps[:, head_b].flatten(0, 1).numpy(),
                )
                result[i, j] = result[j, i] = float(
                    (distance.jensenshannon(p, q, base=2, axis=1) ** 2).mean()
                )
    return result


def of_texts(texts: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """(A, A), (A, A): the mean over words, and over the words that two texts both have of all ordered pairs of them.

    texts: each a list of (H, T, T) per layer, T its own number of words. NaN between layers.
    """
    heads = [(layer, h) for layer, maps in enumerate(texts[0]) for h in range(len(maps))]
    value, null = (
        torch.full((len(heads), len(heads)), torch.nan, dtype=torch.float64) for _ in range(2)
    )
    for i, (a, head_a) in enumerate(heads):
        for j, (b, head_b) in enumerate(heads):
            if a == b and i < j:
                own, crossed = [], []
                for one in texts:
                    for other in texts:
                        rows_one, rows_other = one[a][head_a].numpy(), other[b][head_b].numpy()
                        width = max(len(rows_one), len(rows_other))
                        for p, q in zip(
                            rows_one, rows_other, strict=False
                        ):  # up to the shorter one's last word
                            p, q = (np.pad(row, (0, width - len(row))) for row in (p, q))
                            (own if one is other else crossed).append(
                                distance.jensenshannon(p, q, base=2) ** 2
                            )
                value[i, j] = value[j, i] = float(np.mean(own))
                null[i, j] = null[j, i] = float(np.mean(crossed))
            elif i == j:
                value[i, i] = null[i, i] = 0
    return value, null
