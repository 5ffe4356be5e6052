"""k-means with loops in NumPy, then every query asks whether its favourite key is the rarest it can see.

All patches of the images are in the sample here (it keeps up to 4,096), so which are kept needs no
imitation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from oracles.attention import Site, sites_of

CODES, CELLS = 32, 4


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) share of patch queries whose argmax key has the lowest density among their keys."""
    shares = []
    for site in sites_of(model, images, sites):
        density = densities(site, images)
        for h in range(site.heads):
            hits = []
            for n in range(len(images)):
                for t in site.patches:
                    keys, row = site.keys(t), site.maps[n, h, t].tolist()
                    top = max(row[k] for k in keys)
                    largest = [k for k in keys if row[k] == top]
                    rarest = min(density[n][k] for k in keys)
                    hits.append(np.mean([density[n][k] == rarest for k in largest]))
            shares.append(np.mean(hits))
    return torch.tensor(shares, dtype=torch.float64)


def densities(site: Site, images: Tensor) -> list[dict[int, float]]:
    """Per image, token -> share of all patches that have its code."""
    described = {
        (n, t): describe(image.numpy(), site, t)
        for n, image in enumerate(images)
        for t in site.patches
    }
    points = np.stack(list(described.values())).astype(np.float64)
    codes = lloyd(points, CODES)
    code_of = dict(zip(described, codes, strict=True))
    return [
        {t: float(np.mean(codes == code_of[n, t])) for t in site.patches}
        for n in range(len(images))
    ]


def describe(image: np.ndarray, site: Site, token: int) -> np.ndarray:
    """Mean colours of the fields of one patch; float32, as the pixels of a real image are."""
    (y, x), (down, across) = site.cells[token], (int(side) for side in site.patch)
    patch = image[:, y * down : (y + 1) * down, x * across : (x + 1) * across].astype(np.float32)
    fields = patch.reshape(3, CELLS, down // CELLS, CELLS, across // CELLS)
    return fields.mean((2, 4)).ravel()


def lloyd(points: np.ndarray, codes: int) -> np.ndarray:
    """Code of each point: start far apart, then average and reassign until nothing moves."""
    start = np.argmin(((points - points.mean(0)) ** 2).sum(1))
    centres = [points[start]]
    while len(centres) < codes:
        so_far = np.stack(centres)
        gaps = [((so_far - point) ** 2).sum(1).min() for point in points]
        centres.append(points[int(np.argmax(gaps))])
    centres = np.stack(centres)
    assigned = None
    for _ in range(200):
        nearest = np.array([np.argmin(((centres - point) ** 2).sum(1)) for point in points])
        if assigned is not None and (nearest == assigned).all():
            break
        assigned = nearest
        for code in set(nearest.tolist()):
            centres[code] = points[nearest == code].mean(0)
    return assigned
