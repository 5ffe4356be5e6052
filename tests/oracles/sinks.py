"""Key by key: how much of the attention of all queries that may look there it gets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images and regions of what the most looked-at key gets; regions above half a window only."""
    found = []
    for (name, _), site in zip(sites, sites_of(model, images, sites), strict=True):
        window = getattr(model.get_submodule(name.rpartition(".")[0]), "window_size", None)
        places = len(site.support) if window is None else window[0] * window[1]
        regions = sorted({tuple(keys) for keys in site.support if 2 * len(keys) > places})
        for head in range(site.heads):
            shares = []
            for maps in site.maps[:, head]:
                for region in regions:
                    rows = [maps[q, list(region)] / maps[q, list(region)].sum() for q in region]
                    shares.append(
                        max(sum(float(row[k]) for row in rows) for k in range(len(region)))
                        / len(region)
                    )
            found.append(torch.tensor(shares, dtype=torch.float64).mean())
    return torch.stack(found)
