"""Frequency of image patches: k-means codes of patches, and the share of patches that have each code.

A patch is described by its pixels, averaged over ``cells`` x ``cells`` fields: nothing that a network learned decides
what is rare.

Codes are fitted to a sample of patches that no order, batch size or number of ranks can change. Every patch gets a
number, a hash of its image and its place in it, and those with the smallest numbers are kept (hashing.py). Lloyd's
iteration starts from the patch nearest to the mean and then, again and again, the patch farthest from those chosen
(Gonzalez 1985). So nothing is random in it either. A code that loses all its patches stays where it was.

Shapes: B images, T grid tokens, F numbers that describe a patch, P patches of the sample, C codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadSite
from mhprobe.measures.parts.hashing import image_numbers, mixed

_ROUNDS = 100  # of Lloyd's iteration; it usually stands still earlier


def patches_of(images: Tensor, site: HeadSite, cells: int) -> Tensor:
    """(B, T, F) float32 description of the piece of image under each grid token. Swin's padded rim repeats the edge."""
    height, width = site.token_grid
    down, across = (round(side) for side in site.pixels)
    missing = (0, max(0, width * across - images.shape[-1]), 0, max(0, height * down - images.shape[-2]))
    images = torch.nn.functional.pad(images.float(), missing, mode="replicate")[..., : height * down, : width * across]
    fields = torch.nn.functional.adaptive_avg_pool2d(images, (height * cells, width * cells))
    return (
        fields.unflatten(-2, (height, cells))
        .unflatten(-1, (width, cells))
        .permute(0, 2, 4, 1, 3, 5)
        .flatten(3)
        .flatten(1, 2)
    )


def numbers_of(patches: Tensor) -> Tensor:
    """(B, T) int64 that look random and depend on the image and the token's place alone."""
    place_T = torch.arange(1, patches.shape[1] + 1, device=patches.device)
    return mixed(image_numbers(patches)[:, None] + place_T * 0x9E3779B97F4A7C1)


@dataclass(frozen=True)
class Codes:
    """Codes of patches.

    centre: (C, F) float64. density: (C,) float64 share of the sample's patches that have the code.
    """

    centre: Tensor
    density: Tensor

    @staticmethod
    def fit(patch: Tensor, codes: int) -> Codes:
        """k-means on (P, F). UserError with fewer different patches than codes."""
        patch = patch.double()
        different = len(patch.unique(dim=0)) if len(patch) else 0
        if different < codes:
            raise UserError(
                f"rarity: {different} different patches for {codes} codes, expected at least as many patches as codes. "
                f"Use more images in the validation split, or fewer codes: "
                f"rarity.codes={max(different, 1)}."
            )
        centre = _spread(patch, codes)
        nearest = _nearest(patch, centre)
        for _ in range(_ROUNDS):
            many = torch.zeros(codes, dtype=torch.float64).index_add_(0, nearest, torch.ones(len(patch)).double())
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
