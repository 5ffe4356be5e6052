"""Ask of every key of every query what it is to the query, and add up the weights."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from oracles.attention import Site, norms, sites_of

SIDES = {(-1, 0): "above", (1, 0): "below", (0, -1): "left", (0, 1): "right"}
KINDS = (
    "cls",
    "registers",
    "self",
    "neighbours",
    *SIDES.values(),
    "same_row",
    "same_column",
    "border",
    "high_norm",
)


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean share of attention from patch queries to the up to four neighbours."""
    return shares(model, images, sites)["neighbours"]


def shares(
    model: nn.Module,
    images: Tensor,
    sites: list[tuple[str, int]],
    even: bool = False,
    threshold: float = 3,
) -> dict[str, Tensor]:
    """Per kind (A,), 0 if it never occurs; even: of attention spread evenly instead."""
    means: dict[str, list[Tensor]] = defaultdict(list)
    for site, norm in zip(sites_of(model, images, sites), norms(model, images, sites), strict=True):
        total = defaultdict(lambda site=site: torch.zeros(site.heads, dtype=torch.float64))
        for n in range(len(images)):
            high = level(site, norm[n], threshold)
            for t in site.patches:
                keys = site.support[t]
                row = site.maps[n, :, t, keys]
                row = torch.ones_like(row) if even else row
                row = row / row.sum(-1, keepdim=True)
                for place, k in enumerate(keys):
                    for kind in kinds(site, t, k, norm[n], high):
                        total[kind] += row[:, place]
        for kind in KINDS:
            means[kind].append(total[kind] / len(images) / len(site.patches))
    return {kind: torch.cat(each) for kind, each in means.items()}


def level(site: Site, norm: Tensor, threshold: float) -> float:
    """Above which a norm is high. norm: (T,) of one image."""
    patch = norm[site.patches]
    return float(patch.mean() + threshold * patch.std(correction=0))


def kinds(site: Site, query: int, key: int, norm: Tensor, high: float) -> set[str]:
    """Everything that ``key`` is to ``query``.

    norm: (T,) of this image; high: above which it is high.
    """
    if site.cells[key] is None:
        return {"cls" if site.has_class and key == 0 else "registers"} | (
            {"self"} if key == query else set()
        )
    found = {"self"} if key == query else set()
    if norm[key] > high:
        found.add("high_norm")
    y, x = site.cells[key]
    if y in (0, site.grid[0] - 1) or x in (0, site.grid[1] - 1):
        found.add("border")
    if site.cells[query] is not None and key != query:
        dy, dx = abs(y - site.cells[query][0]), abs(x - site.cells[query][1])
        found |= {"neighbours"} if dy + dx == 1 else set()
        side = SIDES.get((y - site.cells[query][0], x - site.cells[query][1]))
        found |= set() if side is None else {side}
        found |= {"same_row"} if dy == 0 else set()
        found |= {"same_column"} if dx == 0 else set()
    return found
