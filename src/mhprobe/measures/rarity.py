"""Do heads look at what is rare? How often the key with the largest weight is the rarest patch of the image.

A patch is described by its pixels, averaged over ``cells`` x ``cells`` fields. Its density is the
share of patches of the validation images with the same k-means code. All patches of the lowest
density count as rarest, and chance is their share among the keys. In Swin the query sees its shift
region only.

Codes are fitted to the patches with the smallest hash of image and place (hashing.py). Lloyd's
iteration starts from patches each farthest from those chosen (Gonzalez 1985). A code that loses all
its patches stays where it was.
Shapes: T grid tokens, F numbers that describe a patch, P patches of the sample, C codes.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError, whole_number
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import sums
from mhprobe.measures.parts.hashing import Pool, image_numbers, mixed
from mhprobe.measures.parts.places import MeanOfAttention, Piece, over_queries
from mhprobe.stats.intervals import SHARE

_ROUNDS = 100  # of Lloyd's iteration; it usually stands still earlier


class Rarity(MeanOfAttention):
    """Share of patch queries whose argmax key is (one of) the rarest patches they can see.

    codes: number of codes of k-means, fitted on the selection images. patches: largest number of
    patches to fit them on. cells: a patch is described by its mean colours in cells x cells fields.
    Raises UserError with fewer patches than codes.

    Columns, (A,) in [0, 1], larger looks more at what is rare: value, with low and high; top2: the
    argmax key is no denser than the second rarest patch; class_query, class_query_top2: of the
    class token's own row, NaN without one. chance, chance_top2, class_chance, class_chance_top2:
    the same for a random argmax key. Of n keys that share a row's largest weight each counts 1/n.
    """

    fooled_by = (
        "seen: a head that looks at the border or at bright patches, where these happen to be rare"
    )
    select_needs = frozenset()
    selects_by_images = True
    within = SHARE
    label = "share of queries on the rarest patch"
    larger = "the head looks at what is rare more often"
    also = ("by_depth",)

    hits: Tensor = sums("A")  # over images and patch queries: top 2
    class_hits: Tensor = sums("A", 2)  # over images of the class token's row: top 1, top 2
    luck: Tensor = sums(
        "A", 2
    )  # of the share of keys that would be a hit, over images and patch queries
    class_luck: Tensor = sums("A", 2)

    def __init__(
        self,
        layout: HeadLayout,
        codes: int = 32,
        patches: int = 4096,
        cells: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        for option, got, least in (
            ("codes", codes, 2),
            ("patches", patches, codes),
            ("cells", cells, 1),
        ):
            whole_number(f"rarity: {option}", got, least)
        self.num_codes, self.patches, self.cells = codes, patches, cells
        self.samples: dict[Any, Pool] = {}  # of patches, per sort, while selecting
        self.codes: dict[Any, Codes] = {}
        self.density: dict[Any, Tensor] = {}  # (V, T) per sort, of the valid images of a batch

    def reset(self) -> None:
        super().reset()
        self.samples = {}

    def select(self, batch: HeadBatch) -> None:
        for sort, site in self._sorts().items():
            patches = patches_of(batch.need("images", self.name)[batch.valid], site, self.cells)
            sample = self.samples.setdefault(sort, Pool(self.patches))
            sample.add(patch_numbers(patches).flatten(), [patches.flatten(0, 1)])

    def end_select(self) -> None:
        for sort in self._sorts():
            sample = self.samples.get(sort, Pool(self.patches))
            sample.gather()
            patches = sample.held[1].cpu() if sample.parts else torch.empty(0, 1)
            self.codes[sort] = Codes.fit(patches, self.num_codes)
        self.samples = {}

    def begin(self, batch: HeadBatch) -> None:
        images = batch.need("images", self.name)[batch.valid]
        for sort, site in self._sorts().items():
            if sort in self.codes:
                patches = patches_of(images, site, self.cells)
                self.density[sort] = self.codes[sort].density_of(patches)
            else:  # finish() will refuse
                self.density[sort] = torch.zeros(
                    len(images), math.prod(site.token_grid), device=images.device
                ).double()

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, site, span = piece.places, piece.site, piece.span
        density_bT = self.density[_sort(site)][piece.counted]
        density_bWK = density_bT[:, (places.token - site.prefix_tokens).clamp(min=0)]
        # where all may attend to each other, all queries see the same
        keys_WqK = places.patch_keys if places.start is None else places.patch[:, None]
        seen_bWqK = density_bWK[:, :, None].masked_fill(~keys_WqK, torch.inf)
        lowest_bWq2 = seen_bWqK.topk(min(2, seen_bWqK.shape[-1]), largest=False).values
        best, queries = piece.best, places.query_patch.shape
        query_N = best.query.clamp(max=keys_WqK.shape[1] - 1)
        for top in range(min(2, lowest_bWq2.shape[-1])):
            limit_bWq = lowest_bWq2[..., top].where(
                lowest_bWq2[..., top].isfinite(), lowest_bWq2[..., 0]
            )
            rare_bWqK = (seen_bWqK <= limit_bWq[..., None]) & keys_WqK
            rare_N = rare_bWqK[best.image, best.window, query_N, best.key]
            hit_bWHQ = best.met(rare_N, piece.attn.shape)
            luck_bWq = rare_bWqK.sum(-1) / keys_WqK.sum(-1).clamp(min=1).double()
            luck_bWQ = luck_bWq.expand(-1, *queries)
            hits_bH = piece.of_images(hit_bWHQ, places.query_patch)
            if top:
                self.hits[span] += hits_bH.sum(0)
            else:
                self.add_images_of(piece, hits_bH, piece.counts(places.query_patch))
            self.class_hits[span, top] += over_queries(hit_bWHQ, places.class_queries)
            self.luck[span, top] += over_queries(luck_bWQ[:, :, None], places.query_patch)
            self.class_luck[span, top] += over_queries(luck_bWQ[:, :, None], places.class_queries)

    def finish_batch(self, batch: HeadBatch) -> None:
        self.density = {}

    def finish(self) -> dict[str, Tensor]:
        if not self.codes:
            raise UserError(
                "rarity: no codes yet. Show the validation images first: select(batch), then "
                "end_select()."
            )
        queries = self.patch_queries
        tops = {
            "class_query": self.of_class(self.class_hits),
            "chance": self.luck / self.images / queries[:, None],
            "class_chance": self.of_class(self.class_luck),
        }
        columns = {**self.over_images(), "top2": self.hits / self.images / queries}
        for name, both in tops.items():
            columns[name], columns[f"{name}_top2"] = both.unbind(1)
        return columns

    def _sorts(self) -> dict[Any, HeadSite]:
        """The different ways in which sites cut the image, each with one of its sites."""
        return {_sort(site): site for site in reversed(self.layout.sites)}


def _sort(site: HeadSite) -> Any:
    return site.token_grid, site.pixels


def patches_of(images: Tensor, site: HeadSite, cells: int) -> Tensor:
    """(B, T, F) float32 description of the piece of image under each grid token.

    Swin's padded rim repeats the edge.
    """
    height, width = site.token_grid
    down, across = (round(side) for side in site.pixels)
    missing = (
        0,
        max(0, width * across - images.shape[-1]),
        0,
        max(0, height * down - images.shape[-2]),
    )
    images = torch.nn.functional.pad(images.float(), missing, mode="replicate")[
        ..., : height * down, : width * across
    ]
    fields = torch.nn.functional.adaptive_avg_pool2d(images, (height * cells, width * cells))
    return torch.nn.functional.pixel_unshuffle(fields, cells).flatten(2).mT


def patch_numbers(patches: Tensor) -> Tensor:
    """(B, T) int64 that look random and depend on the image and the token's place alone."""
    place_T = torch.arange(1, patches.shape[1] + 1, device=patches.device)
    return mixed(image_numbers(patches)[:, None] + place_T * 0x9E3779B97F4A7C1)


@dataclass(frozen=True)
class Codes:
    """Codes of patches.

    centre: (C, F) float64. density: (C,) share of the sample's patches that have the code.
    """

    centre: Tensor
    density: Tensor

    @staticmethod
    def fit(patch: Tensor, codes: int) -> "Codes":
        """k-means on (P, F). UserError with fewer different patches than codes."""
        patch = patch.double()
        different = len(patch.unique(dim=0)) if len(patch) else 0
        if different < codes:
            raise UserError(
                f"rarity: {different} different patches for {codes} codes, expected at least as "
                "many patches as codes. "
                "Use more images in the validation split, or fewer codes: "
                f"rarity.codes={max(different, 1)}."
            )
        centre = _spread(patch, codes)
        nearest = _nearest(patch, centre)
        for _ in range(_ROUNDS):
            many = torch.zeros(codes, dtype=torch.float64).index_add_(
                0, nearest, torch.ones(len(patch)).double()
            )
            total = torch.zeros_like(centre).index_add_(0, nearest, patch)
            centre = torch.where(many[:, None] > 0, total / many.clamp(min=1)[:, None], centre)
            before, nearest = nearest, _nearest(patch, centre)
            if torch.equal(before, nearest):
                break
        return Codes(centre, torch.bincount(nearest, minlength=codes).double() / len(patch))

    def density_of(self, patches: Tensor) -> Tensor:
        """(B, T) density of the code of each of (B, T, F) patches."""
        nearest = _nearest(patches.double().flatten(0, 1), self.centre.to(patches.device))
        return self.density.to(patches.device)[nearest].view(patches.shape[:2])


def _spread(patch: Tensor, codes: int) -> Tensor:
    """(C, F) patches far from each other."""
    start = (patch - patch.mean(0)).square().sum(1).argmin()
    centres = [patch[start]]
    gap = (patch - centres[0]).square().sum(1)
    for _ in range(codes - 1):
        centres.append(patch[gap.argmax()])
        gap = torch.minimum(gap, (patch - centres[-1]).square().sum(1))
    return torch.stack(centres)


def _nearest(patch: Tensor, centre: Tensor) -> Tensor:
    """(P,) index of the nearest centre. Differences, not |x|^2 - 2xc + |c|^2: that one cancels."""
    distance = torch.cdist(patch, centre, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.argmin(1)
