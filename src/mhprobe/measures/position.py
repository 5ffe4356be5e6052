"""Does a head look at one fixed place relative to the query, whatever the image shows?

Voita et al., 2019, arXiv 1905.09418, section 4: a positional head has its largest weight at one
offset in at least 90 % of queries. Here an offset is (rows, columns) of the token grid. From many
queries it points out of the image, or of the
Swin window: on an 8 x 8 grid "one to the left" exists for 7/8 of them. So column ``reaching`` is
the share among queries for which the key exists, and only offsets that exist for ``reach`` of the
queries are candidates.
Shapes: Y, X offsets along the grid's axes, from -max to max.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.parts.places import (
    OfAttention,
    Piece,
    Places,
    even_over,
    places_alone,
    places_of,
    reach_of,
)
from mhprobe.stats.intervals import SHARE, interval
from mhprobe.stats.significance import standard_error


class Position(OfAttention):
    """Share of all patch queries whose largest weight is at the head's favourite offset.

    threshold: share from which a head is positional. reach: smallest share of queries for which a
    candidate's key exists. Raises UserError for shares outside (0, 1].

    Columns, (A,): value in [0, 1], larger is more positional; low, high: its 95 % interval over
    images, at this offset; dy, dx the offset in tokens, key minus query (dx = -1: the left
    neighbour; 0, 0: itself); positional 1 where value >= threshold, else 0; reaching: the share
    among the queries for which the key exists; reach: the share of these queries, the largest
    possible value; chance: value of a random key. counts (A, Y, X): mean queries of an image at
    each offset, the middle one being 0, 0; exists (A, Y, X): queries from which it can be reached.
    Of n keys that share a query's largest weight each counts 1/n. Among equal offsets the shortest
    wins, then the upper, then the left one.
    """

    fooled_by = "seen: few queries of small windows reach an offset; by definition: one fixed place is many offsets"
    within = SHARE
    label = "share of queries at the head's offset"
    larger = "the head looks at one fixed offset more often"
    also = ("offset_maps",)

    # (A, Y, X) float64: queries with their argmax key there; of n equal keys each counts 1/n
    counts: Tensor
    squares: Tensor  # (A, Y, X) sum over images of the square of their number

    def __init__(
        self, layout: HeadLayout, threshold: float = 0.9, reach: float = 0.25, **kwargs: Any
    ) -> None:
        super().__init__(layout, **kwargs)
        for option, got in (("threshold", threshold), ("reach", reach)):
            if not 0 < got <= 1:
                raise UserError(f"position: {option} is a share above 0 and at most 1, got {got}.")
        self.threshold, self.least = threshold, reach
        self.size = (
            max(reach_of(site)[0] for site in layout.sites),
            max(reach_of(site)[1] for site in layout.sites),
        )
        for name in ("counts", "squares"):
            self.add_state(name, torch.zeros(layout.num_heads, *self.size, dtype=torch.float64))

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        span = piece.span
        best = piece.favourites  # NaN too, which is an error at the end
        counts_bHYX = self.counts.new_zeros(len(piece.attn), *self.counts[span].shape)
        start = (best.image * counts_bHYX.shape[1] + best.head) * self.counts[0].numel()
        offset_N = piece.places.offset(best.window, best.query, best.key, self.size)
        counts_bHYX.view(-1).index_add_(0, start + offset_N, best.share)
        if (whole := self.whole(piece, counts_bHYX)) is not None:
            self.counts[span] += whole[0].sum(0)
            self.squares[span] += whole[0].square().sum(0)

    def finish(self) -> dict[str, Tensor]:
        exists = self._sums(lambda pairs: pairs.double())
        even = self._sums(even_over)
        queries = self.patch_queries
        share = self.counts / self.images / exists  # NaN where no query has such a key
        candidates = exists >= self.least * queries[:, None, None]
        down, across = (torch.arange(size, device=self.device) - size // 2 for size in self.size)
        order = (
            (down[:, None] ** 2 + across**2).flatten().argsort(stable=True)
        )  # from the shortest to the longest
        ranked = self.counts.masked_fill(~candidates, -1).flatten(1)[:, order]
        best = order[
            (ranked == ranked.amax(1, keepdim=True)).int().argmax(1)
        ]  # the first of the largest

        def at(values: Tensor) -> Tensor:
            return values.flatten(1).gather(1, best[:, None])[:, 0]

        value = at(self.counts) / (
            self.images * queries
        )  # divided once: nine tenths are not less by rounding
        error = standard_error(at(self.counts), at(self.squares), self.images) / queries
        low, high = interval(value, error, int(self.images) - 1, self.within)
        return {
            "value": value,
            "low": low,
            "high": high,
            "dy": best // self.size[1] - self.size[0] // 2,
            "dx": best % self.size[1] - self.size[1] // 2,
            "positional": (value >= self.threshold).long(),
            "reaching": at(share),
            "reach": at(exists) / queries,
            "chance": at(even) / queries,
            "counts": self.counts / self.images,
            "exists": exists,
        }

    def _sums(self, weigh: Any) -> Tensor:
        """(A, Y, X) sum of ``weigh(patch_pairs)`` over the pairs of each offset."""
        sums, known = torch.zeros_like(self.counts), dict[HeadSite, Tensor]()
        for number, site in enumerate(self.layout.sites):
            alone = places_alone(site)
            if alone not in known:
                known[alone] = self._sum(places_of(site, self.device), weigh)
            sums[self.layout.span(number)] = known[alone]
        return sums

    def _sum(self, places: Places, weigh: Any) -> Tensor:
        """(Y, X) of ``_sums``, of a site with these places."""
        flat = self.counts.new_zeros(self.counts[0].numel())
        for part in places.parts():
            index = part.offsets(self.size) * part.patch_pairs  # others can be further apart
            flat.index_add_(0, index.flatten(), weigh(part.patch_pairs).flatten())
        return flat.view_as(self.counts[0])
