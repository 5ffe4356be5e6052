"""Attention range: the radius around the favourite key that holds 50 or 90 % of the other attention (r50, r90).

Distances are from a query's own argmax key. The mass on that key is left out, or r50 would be 0 for
most heads of small windows; column ``peak`` has it. Prefix rows and columns are dropped and the
rest is renormalised. The radius is read from the mean profile of mass over the distances of the
grid, linearly between them.
Shapes: R distinct distances of the site that has most.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import counts
from mhprobe.measures.parts.jackknife import FOLDS, fold_of, jackknife
from mhprobe.measures.parts.places import (
    OfAttention,
    Piece,
    around_favourites,
    even_over,
    places_of,
)
from mhprobe.stats.intervals import SIZE

# roots of equal squares may differ in the last bit: a millionth of a pixel tells distances apart
_DIGITS = 6


class AttentionRange(OfAttention):
    """Radius around the argmax key that holds half of the attention that is not on it.

    Columns, in input pixels, (A,), larger is broader: value = r50: radius that holds 50 % of the
    mass off the argmax key, 0 if there is none; low, high: its 95 % interval (jackknife over folds
    of images); r90: 90 %; uniform,
    uniform_r90: the same for even attention over the same keys, around the same argmax keys. peak,
    uniform_peak: mean share of the argmax key, in [0, 1]. For the figure, (A, R): distances, NaN
    behind a site's last; mass and uniform_mass at each. folds: () number of folds with images. Of n
    keys that share a query's largest weight each counts 1/n.
    """

    fooled_by = "by definition: a head that looks at itself is as narrow as one that looks at one token far away"
    within = SIZE
    label = "attention range r50 (input pixels)"
    unit = "input pixels"
    larger = "attention spreads wider around the place that the head looks at most"
    also = ("range_profile",)

    # (J, A, R) sum over images and queries of attention at each distance from the argmax key
    mass: Tensor
    uniform_mass: Tensor  # (A, R) sum over all folds of the same of even attention
    fold_images: Tensor = counts(FOLDS)

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        most = max(len(_rings(site, torch.device("cpu"))[0]) for site in layout.sites)
        self.add_state("mass", torch.zeros(FOLDS, layout.num_heads, most, dtype=torch.float64))
        self.add_state("uniform_mass", torch.zeros(layout.num_heads, most, dtype=torch.float64))

    def add(self, batch: HeadBatch) -> None:
        super().add(batch)
        self.fold_images += torch.bincount(fold_of(batch), minlength=FOLDS)

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        distances, _ = _rings(piece.site, piece.attn.device)
        held, place_b = batch.derive(fold_of)[piece.counted].unique(return_inverse=True)
        # a fold's rows with the same argmax key have the same rings: add them up first, then sort
        # into rings
        row_FWHKK, seen_WHK = around_favourites(piece, place_b, len(held))
        self.mass[held, span, : len(distances)] += _by_ring(row_FWHKK, piece)
        even_WHKK = seen_WHK[..., None] * even_over(places.patch_pairs)[:, None]
        self.uniform_mass[span, : len(distances)] += _by_ring(even_WHKK[None], piece)[0]

    def finish(self) -> dict[str, Tensor]:
        queries = self.patch_queries[:, None]
        whole = self.mass.sum(0)
        mass, even = whole / self.images / queries, self.uniform_mass / self.images / queries
        distances = torch.full_like(mass, torch.nan)
        for number, site in enumerate(self.layout.sites):
            values = _rings(site, self.device)[0]
            distances[self.layout.span(number), : len(values)] = values

        def off_centre(mass: Tensor, share: float) -> Tensor:
            off = mass.clone()
            off[:, 0] = 0  # at distance 0 there is the argmax key alone
            return radius(distances, off, share)

        r50 = off_centre(whole, 0.5)
        return {
            **jackknife(
                r50,
                lambda fold: off_centre(whole - self.mass[fold], 0.5),
                self.fold_images,
                self.within,
            ),
            "r50": r50.clone(),
            "r90": off_centre(whole, 0.9),
            "uniform": off_centre(even, 0.5),
            "uniform_r90": off_centre(even, 0.9),
            "peak": mass[:, 0].clone(),
            "uniform_peak": even[:, 0].clone(),
            "folds": (self.fold_images > 0).sum(),
            "distances": distances,
            "mass": mass,
            "uniform_mass": even,
        }


def _by_ring(rows: Tensor, piece: Piece) -> Tensor:
    """(N, H, R) sums of (N, W, H, argmax key, key) rows by the distance between the two keys."""
    distances, ring_WKK = _rings(piece.site, rows.device)
    flat_NHX = rows.transpose(1, 2).flatten(2)
    sums_NHR = flat_NHX.new_zeros(*flat_NHX.shape[:2], len(distances))
    return sums_NHR.index_add_(2, ring_WKK.flatten(), flat_NHX)


def radius(distances: Tensor, mass: Tensor, share: float) -> Tensor:
    """(A,) radius that holds ``share`` of (A, R) mass: linear between distances, 0 if the centre holds it alone.

    >>> radius(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.5, 0.25, 0.25]]), share=0.625).item()
    0.5
    """
    inside = mass.cumsum(1)
    target = share * inside[:, -1:]
    at = (inside < target).sum(1, keepdim=True).clamp(max=mass.shape[1] - 1)
    before = (at - 1).clamp(min=0)
    low, high = distances.nan_to_num().gather(1, before), distances.nan_to_num().gather(1, at)
    start, step = inside.gather(1, before), mass.gather(1, at)
    between = low + (high - low) * ((target - start) / step).clamp(0, 1)
    return torch.where(at > 0, between, high)[:, 0]


@functools.lru_cache(maxsize=256)
def _rings(site: HeadSite, device: torch.device) -> tuple[Tensor, Tensor]:
    """(R,) rising distances on the grid up to the farthest key, and (W, K, K) index of each pair's distance in it.

    Pairs that may not attend to each other get index 0; their mass is 0.
    """
    with torch.inference_mode(False):
        distance = places_of(site, device).distance.round(decimals=_DIGITS)
        down, across = (
            torch.arange(n, dtype=torch.float64, device=device) for n in site.token_grid
        )
        occurring = torch.hypot(down[:, None] * site.pixels[0], across * site.pixels[1])
        occurring = occurring.round(decimals=_DIGITS).unique()
        rising = occurring[occurring <= distance.max()]
        return rising, torch.searchsorted(rising, distance)
