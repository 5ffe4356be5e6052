"""The largest weight of each row, found by looking at every key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.attention import sites_of


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images and patch queries of the largest weight on a patch key."""
    return torch.cat(
        [
            torch.stack(
                [
                    torch.stack([site.maps[:, :, t, k] for k in site.keys(t)]).amax(0)
                    for t in site.patches
                ]
            ).mean((0, 1))
            for site in sites_of(model, images, sites)
        ]
    )
