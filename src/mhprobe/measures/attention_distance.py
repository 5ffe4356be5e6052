"""Attention distance: the attention-weighted distance between a query and its keys, in pixels of the input image.

Dosovitskiy et al., 2021, arXiv 2010.11929, appendix D.7; Raghu et al., 2021, arXiv 2108.08810,
section 4. Distances are Euclidean, between centres of patches. Raghu et al. do not renormalise rows
without prefix tokens ("raw" here).
"""

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch, HeadSite
from mhprobe.measures.base import sums
from mhprobe.measures.parts.places import MeanOfAttention, Piece, Places, even_over
from mhprobe.stats.intervals import SIZE


class AttentionDistance(MeanOfAttention):
    """Mean attention distance over patch queries and images; rows sum to 1 without prefix and padding keys.

    Columns, (A,) in input pixels, larger looks further: value = renormalised, with low and high;
    raw: without renormalising; uniform: of even attention over the same keys; whole: of even
    attention over the whole grid, ignoring windows. A row without weight on patches counts as 0.
    """

    fooled_by = "by definition: a head that looks next to itself and far away has the mean of one that looks halfway"
    within = SIZE
    label = "mean attention distance (input pixels)"
    unit = "input pixels"
    larger = "the head looks further"
    also = ("by_depth",)

    raw_total: Tensor = sums("A")  # over images and queries, of raw rows

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        raw_bWHQ = torch.einsum("bwhqk,wqk->bwhq", piece.attn, places.distance)
        tiny = torch.finfo(torch.float64).tiny
        renormalised_bWHQ = raw_bWHQ / piece.on_patches.clamp(min=tiny)
        asking_WQ = places.query_patch
        self.raw_total[span] += piece.of_images(raw_bWHQ, asking_WQ).sum(0)
        self.add_images_of(
            piece, piece.of_images(renormalised_bWHQ, asking_WQ), piece.counts(asking_WQ)
        )

    def finish(self) -> dict[str, Tensor]:
        queries = self.patch_queries
        return {
            **self.over_images(),
            "renormalised": self.image_sums[0] / self.images / queries,
            "raw": self.raw_total / self.images / queries,
            "uniform": self.per_site(lambda site, p: _even(p) / p.patch.sum()),
            "whole": self.per_site(_over_the_grid),
        }


def _even(places: Places) -> Tensor:
    """() sum over queries of the mean distance of even attention."""
    parts = [(p.distance * even_over(p.patch_pairs)).sum() for p in places.parts()]
    return torch.stack(parts).sum()


def _over_the_grid(site: HeadSite, places: Places) -> Tensor:
    """() mean distance between any two grid tokens."""
    sides = zip(site.token_grid, site.pixels, strict=True)
    position_T2 = torch.cartesian_prod(
        *(torch.arange(count).double() * step for count, step in sides)
    )
    from_each = [torch.cdist(some, position_T2).sum() for some in position_T2.split(64)]
    return torch.stack(from_each).sum() / len(position_T2) ** 2
