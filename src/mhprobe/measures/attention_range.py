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
    LargestKeys,
    OfAttention,
    Piece,
    Places,
    even_over,
    places_alone,
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
        most = max(_rings(site, torch.device("cpu")).count for site in layout.sites)
        self.add_state("mass", torch.zeros(FOLDS, layout.num_heads, most, dtype=torch.float64))
        self.add_state("uniform_mass", torch.zeros(layout.num_heads, most, dtype=torch.float64))

    def finish_batch(self, batch: HeadBatch) -> None:
        self.fold_images += torch.bincount(fold_of(batch), minlength=FOLDS)

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        rings, span = _rings(piece.site, piece.attn.device), piece.span
        fold_b = batch.derive(fold_of)[piece.counted]
        best = piece.favourites
        mass_FHR = self.mass.new_zeros(len(self.mass), piece.site.num_heads, rings.count)
        start_N = fold_b[best.image] * piece.site.num_heads + best.head
        on_N = piece.on_patches.flatten()[best.row(piece.attn.shape)]
        share_N = best.share / on_N.clamp(min=torch.finfo(on_N.dtype).tiny)
        most = max(1, piece.attn.numel() // piece.attn.shape[-1])
        for some in torch.arange(len(share_N), device=share_N.device).split(most):
            row_nK, ring_nK = _around(piece, best.where(some), rings)
            mass_nR = row_nK.new_zeros(len(some), rings.count)
            mass_nR.scatter_add_(1, ring_nK, row_nK).mul_(share_N[some, None])
            mass_FHR.flatten(0, 1).index_add_(0, start_N[some], mass_nR)
        self.mass[:, span, : rings.count] += mass_FHR
        windows, keys = piece.places.token.shape
        seen_HWK = self.mass.new_zeros(piece.site.num_heads, windows * keys)
        at_N = (best.head * windows + best.window) * keys + best.key
        seen_HWK.view(-1).index_add_(0, at_N, best.share)
        if (whole := self.whole(piece, seen_HWK)) is not None:
            self.uniform_mass[span, : rings.count] += whole[0] @ rings.even_WKR.flatten(0, 1)

    def finish(self) -> dict[str, Tensor]:
        queries = self.patch_queries[:, None]
        whole = self.mass.sum(0)
        mass, even = whole / self.images / queries, self.uniform_mass / self.images / queries
        distances = torch.full_like(mass, torch.nan)
        for number, site in enumerate(self.layout.sites):
            values = _rings(site, self.device).distances
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


def _around(piece: Piece, best: LargestKeys, rings: "Rings") -> tuple[Tensor, Tensor]:
    """(N, K) attention of rows to the patches that they may attend to, and ring of each around the row's best key.

    Of a grid without windows they are its patches alone; of others what is no patch has weight 0.
    """
    places, start = piece.places, piece.places.start
    row_nK = piece.attn.flatten(0, 3)
    row_n = best.row(piece.attn.shape)
    if not torch.equal(row_n, torch.arange(len(row_nK), device=row_n.device)):
        row_nK = row_nK[row_n]
    if start is not None and piece.site.windows is None:
        return row_nK[:, start:], rings.of_grid(best.key - start)
    keys_nK = places.patch_pairs[best.window, best.query]
    ring_nK = rings.between(places, best.window, best.key)
    return row_nK * keys_nK, ring_nK


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


class Rings:
    """Distances between the patches of a site.

    distances: (R,) rising, up to that of the farthest key.
    """

    def __init__(self, site: HeadSite, places: Places) -> None:
        down, across = (
            torch.arange(n, dtype=torch.float64, device=places.token.device)
            for n in site.token_grid
        )
        apart_hw = torch.hypot(down[:, None] * site.pixels[0], across * site.pixels[1])
        apart_hw = apart_hw.round(decimals=_DIGITS)
        farthest = torch.stack([part.distance.max() for part in places.parts()]).max()
        occurring = apart_hw.unique()
        self.distances = occurring[occurring <= farthest.round(decimals=_DIGITS)]
        self.count = len(self.distances)
        # of pairs that may not attend to each other it does not matter: their mass is 0
        self._ring_hw = torch.searchsorted(self.distances, apart_hw).clamp(max=self.count - 1)
        self._places = places

    def between(self, places: Places, window_N: Tensor, key_N: Tensor) -> Tensor:
        """(N, K) index in ``distances`` of each place of a window, from one of its places."""
        step_NK2 = (places.cell[window_N] - places.cell[window_N, key_N][:, None]).abs()
        return self._ring_hw[step_NK2[..., 0], step_NK2[..., 1]]

    def of_grid(self, patch_N: Tensor) -> Tensor:
        """(N, T) index in ``distances`` of each patch of the grid, from one of them."""
        height, width = self._ring_hw.shape
        # distances from a patch are a window of the distances from the middle of a grid twice as large
        down, across = (
            torch.arange(1 - n, n, device=patch_N.device).abs() for n in (height, width)
        )
        around = self._ring_hw[down[:, None], across].unfold(0, height, 1).unfold(1, width, 1)
        row_N, column_N = patch_N // width, patch_N % width
        return around[height - 1 - row_N, width - 1 - column_N].flatten(1)

    @functools.cached_property
    def even_WKR(self) -> Tensor:
        """(W, K, R) even attention of each query at each distance from itself."""
        parts = []
        for places in self._places.parts():
            even_WqK = even_over(places.patch_pairs)
            step_WqK2 = places.steps.abs()
            ring_WqK = self._ring_hw[step_WqK2[..., 0], step_WqK2[..., 1]]
            at = even_WqK.new_zeros(*even_WqK.shape[:2], self.count)
            parts.append(at.scatter_add_(2, ring_WqK, even_WqK))
        return torch.cat(parts, 1)


def _rings(site: HeadSite, device: torch.device) -> Rings:
    return _rings_of(places_alone(site), device)


@functools.lru_cache(maxsize=64)
def _rings_of(site: HeadSite, device: torch.device) -> Rings:
    with torch.inference_mode(False):
        return Rings(site, places_of(site, device))
