"""Does a head look at the object, and does it follow a relation between patches better than a fixed offset would?

For language, Clark et al. 2019, arXiv 1906.04341, section 4: a head predicts the word it attends to
most; per relation, the best head is compared with the best fixed offset. Here words are patches,
and a relation says on which object the patch attended to most must lie. A patch shows what most of
its pixels show (among equals the lowest number; 0 is the ground). Only pairs of the same window and
shift region count. The best of many heads is best by luck too, so images are
dealt into two halves: a head (and an offset) is chosen on the first and scored on the second.
Shapes: R relations, O offsets. Sums have the half of the images in front.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Meaning, counts, mean_of, sums
from mhprobe.measures.parts.jackknife import fold_of
from mhprobe.measures.parts.places import (
    OfAttention,
    Piece,
    of_largest,
    of_pairs,
    places_alone,
    places_of,
    reach_of,
)
from mhprobe.stats.intervals import SHARE, interval, of_mean
from mhprobe.stats.significance import standard_error

IMAGES = 8  # at a time

# what the query shows, what the key shows (0: ground; other numbers: objects) -> whether the
# relation holds
RELATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "same object": lambda query, key: (query > 0) & (key == query),
    "other object": lambda query, key: (query > 0) & (key > 0) & (key != query),
    "object to ground": lambda query, key: (query > 0) & (key == 0),
    "ground to object": lambda query, key: (query == 0) & (key > 0),
}
_FOUND = "the head finds what is in the relation more often"
_OFFSET_FINDS = "one fixed offset finds what is in the relation more often"
_PLACE = "nothing: it is a place"
_BY_RELATION = {
    "relations": Meaning("accuracy of the most attended patch", _FOUND),
    "offset": Meaning("accuracy of the best fixed offset", _OFFSET_FINDS),
    "even": Meaning("accuracy of a patch drawn evenly", "the relation is met more often by chance"),
    "best_down": Meaning("the best fixed offset, patches downwards", _PLACE),
    "best_right": Meaning("the best fixed offset, patches to the right", _PLACE),
    "relations_held_out": Meaning(
        "accuracy of the best head, on images that did not choose it", _FOUND
    ),
    "relations_low": Meaning("the lower end of its 95 % interval", _FOUND),
    "relations_high": Meaning("the upper end of its 95 % interval", _FOUND),
    "offset_held_out": Meaning(
        "accuracy of the best fixed offset, on images that did not choose it", _OFFSET_FINDS
    ),
}


class ObjectAttention(OfAttention):
    """Share of patches whose most attended patch lies on an object.

    Raises UserError for a batch without object masks.

    Columns, (A,) shares in [0, 1], larger means more often: value: mean over images of the share of
    query patches whose argmax key is on an object; low, high: its 95 % interval over images;
    chance: of a key drawn evenly; mass: mean attention of a patch to patches on objects; cls: share
    of images whose class token has its argmax on an object, NaN without one; relations (A, R):
    accuracy of the argmax key, the query itself left out, over queries that can meet the relation;
    offset (A, R): of the best fixed offset at the head's site; even (A, R): of an even draw;
    best_down, best_right (A, R): the best offset, in patches.
    On the second half of the images: held_out, held_out_low, held_out_high (A,): value and its 95 %
    interval of the one head that is best on the first half, NaN elsewhere; relations_held_out,
    relations_low, relations_high (A, R): the same for relations; offset_held_out (A, R): the best
    offset of the first half. Of n keys that share a row's largest weight each counts 1/n.
    """

    fooled_by = "by definition: one large object in the middle: a head that looks at the middle looks at the object"
    within = SHARE
    label = "share of patches whose argmax key is on an object"
    larger = "the patch that is looked at most lies on an object more often"
    empty = (
        f"{OfAttention.empty}, no patch can meet a relation, or in half of the images too few can"
    )
    also = ("relations",)
    along: ClassVar[Mapping[str, Meaning]] = _BY_RELATION

    dealt: Tensor = counts(2)  # images of each half
    share: Tensor = sums(
        2, "A"
    )  # over images of the share of patches whose argmax key is on an object
    square: Tensor = sums(2, "A")  # of its square
    chance: Tensor = sums("A")  # of the share that an even draw would have
    mass: Tensor = sums("A")  # of the mean attention to patches on objects
    cls: Tensor = sums("A")  # images whose class token looks at an object
    followed: Tensor = sums(2, "A", len(RELATIONS))  # queries whose argmax key meets the relation
    followed_square: Tensor = sums(
        2, "A", len(RELATIONS)
    )  # over images of the square of their number
    followed_possible: Tensor = sums(
        2, "A", len(RELATIONS)
    )  # ... of their number times that of queries that can
    even: Tensor = sums("S", len(RELATIONS))  # over queries of the share of keys that meet it
    possible: Tensor = counts(2, "S", len(RELATIONS))  # queries that can meet it
    possible_square: Tensor = counts(
        2, "S", len(RELATIONS)
    )  # over images of the square of their number

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self.axes = {key: list(RELATIONS) for key in _BY_RELATION}
        for number, site in enumerate(layout.sites):
            offsets = torch.zeros(2, len(RELATIONS), math.prod(reach_of(site)), dtype=torch.long)
            self.add_state(f"offsets_{number}", offsets)

    def begin(self, batch: HeadBatch) -> None:
        if batch.objects is None:
            raise UserError(
                "object_attention: the data set has no object masks, expected them beside the "
                "images. Use data=scenes, "
                "data=pets or leave the measure out."
            )

    def finish_batch(self, batch: HeadBatch) -> None:
        self.dealt += torch.bincount(fold_of(batch, 2), minlength=2)
        for number, site in enumerate(self.layout.sites):
            possible = batch.derive(_possible, places_alone(site))
            self.even[number] += possible.even
            offsets: Tensor = getattr(self, f"offsets_{number}")
            offsets += possible.offsets

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        site, span, number, places = piece.site, piece.span, piece.number, piece.places
        shown_BT = batch.derive(_patches, site.token_grid, site.pixels)[piece.counted]
        half_B = fold_of(batch, 2)[piece.counted]
        shown_BWK = shown_BT[:, (places.token - site.prefix_tokens).clamp(min=0)]
        best = piece.other_favourites
        place_N = best.query if places.queries is None else places.queries[best.query]
        of_query, of_key = (
            shown_BWK[best.image, best.window, place] for place in (place_N, best.key)
        )
        everyone = torch.ones_like(places.query_patch)
        hits_BH = [
            piece.of_images(best.met(holds(of_query, of_key), piece.attn.shape), everyone)
            for holds in RELATIONS.values()
        ]
        share_BH = self._overall(piece, shown_BWK)
        if (whole := self.whole(piece, share_BH, *hits_BH)) is None:
            return
        share_BH, *hits_BH = whole
        self.share[:, span].index_add_(0, half_B, share_BH)
        self.square[:, span].index_add_(0, half_B, share_BH.square())
        possible_BR = batch.derive(_possible, places_alone(site)).possible[piece.counted]
        for r, of_relation_BH in enumerate(hits_BH):
            possible_B = possible_BR[:, r]
            self.followed[:, span, r].index_add_(0, half_B, of_relation_BH)
            self.followed_square[:, span, r].index_add_(0, half_B, of_relation_BH.square())
            both_BH = of_relation_BH * possible_B[:, None]
            self.followed_possible[:, span, r].index_add_(0, half_B, both_BH)
            self.possible[:, number, r].index_add_(0, half_B, possible_B)
            self.possible_square[:, number, r].index_add_(0, half_B, possible_B.square())

    def _overall(self, piece: Piece, shown_BWK: Tensor) -> Tensor:
        """(B, H) share of an image's patches, of those in this piece, whose argmax key is on an object."""
        span, places = piece.span, piece.places
        grid_WK = places.patch
        on_BWK = (shown_BWK > 0) & grid_WK
        queries = grid_WK.sum()
        if places.start is None:
            on_BWQK = on_BWK[:, :, None] & places.patch_pairs
            even_BWQ = on_BWQK.sum(-1).double() / places.patch_pairs.sum(-1).clamp(min=1)
            mass_H = of_pairs(piece.attn, on_BWQK).sum(0)
        else:
            even_BWQ = on_BWK.sum(-1, keepdim=True).double() / grid_WK.sum(-1, keepdim=True)
            columns_bwhk = piece.patch_columns
            mass_H = torch.einsum("bwhk,bwk->h", columns_bwhk, on_BWK.to(piece.attn.dtype))
        self.mass[span] += mass_H / queries
        self.chance[span] += (even_BWQ * places.query_patch).sum() / queries
        if piece.site.class_token and places.class_queries.any():
            best_BHK = of_largest(piece.attn[:, :, :, :1], grid_WK[:, None])[:, 0, :, 0]
            self.cls[span] += torch.einsum("bhk,bk->h", best_BHK, on_BWK[:, 0].double())
        best = piece.favourites
        on_BWHQ = best.met(on_BWK[best.image, best.window, best.key], piece.attn.shape)
        return piece.of_images(on_BWHQ, places.query_patch) / queries

    def finish(self) -> dict[str, Tensor]:
        value = of_mean(self.share.sum(0), self.square.sum(0), self.images, self.within)
        site_of_head = self.layout.site_of_head.to(self.device)
        possible_SR = self.possible.sum(0).double()
        best = zip(*self._best_offsets(), strict=True)
        offset, held, down, right = (torch.stack(parts)[site_of_head] for parts in best)
        return {
            **{name: value[name] for name in ("value", "low", "high")},
            "chance": self.chance / self.images,
            "mass": self.mass / self.images,
            "cls": self.of_class(self.cls),
            "relations": mean_of(self.followed.sum(0), possible_SR[site_of_head]),
            "offset": mean_of(offset, possible_SR[site_of_head]),
            "even": mean_of(self.even, possible_SR)[site_of_head],
            "best_down": down,
            "best_right": right,
            **self._chosen(),
            **self._chosen_by_relation(site_of_head),
            "offset_held_out": mean_of(held, self.possible[1].double()[site_of_head]),
        }

    def _chosen(self) -> dict[str, Tensor]:
        """``held_out`` of the head that is best on the first half; NaN for all where a half has no images."""
        score = mean_of(self.share, self.dealt.double()[:, None].expand_as(self.share))
        error = standard_error(self.share[1], self.square[1], self.dealt[1])
        return self._held_out(("held_out", "held_out_low", "held_out_high"), score, error)

    def _chosen_by_relation(self, site_of_head: Tensor) -> dict[str, Tensor]:
        """The same for relations, with the error over images of a ratio of sums, linearised."""
        possible, square = (
            self.possible[:, site_of_head].double(),
            self.possible_square[1][site_of_head].double(),
        )
        score = mean_of(self.followed, possible)
        left = (
            self.followed_square[1]
            - 2 * score[1] * self.followed_possible[1]
            + score[1].square() * square
        )
        images = self.dealt[1].double()
        error = (left.clamp(min=0) * images / (images - 1)).sqrt() / possible[1]
        return self._held_out(
            ("relations_held_out", "relations_low", "relations_high"), score, error
        )

    def _held_out(
        self, names: tuple[str, str, str], score: Tensor, error: Tensor
    ) -> dict[str, Tensor]:
        """Second half's score (2, A, ...) and 95 % interval, of the head that is best on the first; else NaN."""
        best = score[0].nan_to_num(nan=-1.0).argmax(0, keepdim=True)
        chosen = (
            torch.zeros_like(score[1], dtype=torch.bool).scatter(0, best, True) & ~score[0].isnan()
        )
        ends = (score[1], *interval(score[1], error, int(self.dealt[1]) - 1, self.within))
        return {
            name: values.masked_fill(~chosen, torch.nan)
            for name, values in zip(names, ends, strict=True)
        }

    def _best_offsets(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(R,) each per site: hits of the best offset; hits on half 2 of that of half 1; its rows; its columns."""
        offsets = []
        for number, site in enumerate(self.layout.sites):
            height, width = reach_of(site)
            counts: Tensor = getattr(self, f"offsets_{number}").double()
            count, best = counts.sum(0).max(-1)
            held = counts[1].gather(-1, counts[0].argmax(-1, keepdim=True))[..., 0]
            offsets.append((count, held, best // width - height // 2, best % width - width // 2))
        return offsets


class Possible(NamedTuple):
    """Relations between the patches of a batch's valid images, in the windows of a site.

    even: (R,) sum over queries of the share of keys that meet a relation. offsets: (2, R, O) pairs
    that meet it at each offset, by the half of the images. possible: (V, R) queries that can meet
    it.
    """

    even: Tensor
    offsets: Tensor
    possible: Tensor


def _possible(batch: HeadBatch, site: HeadSite) -> Possible:
    reach = reach_of(site)
    shown_BT, half_B = _patches(batch, site.token_grid, site.pixels), fold_of(batch, 2)
    device, relations = shown_BT.device, len(RELATIONS)
    even = torch.zeros(relations, dtype=torch.float64, device=device)
    offsets = torch.zeros(2, relations, math.prod(reach), dtype=torch.long, device=device)
    possible_BR = torch.zeros(len(shown_BT), relations, dtype=torch.long, device=device)
    for places in places_of(site, device).parts():
        others_WQK = places.patch_pairs & ~places.itself
        offset_WQK = (places.offsets(reach) * others_WQK).flatten()
        keys_WQ = others_WQK.sum(-1).clamp(min=1).double()
        for some in torch.arange(len(shown_BT), device=device).split(IMAGES):
            shown_bWK = shown_BT[some][:, (places.token - site.prefix_tokens).clamp(min=0)]
            shown_bWQ = shown_bWK[..., places.queries]
            for r, holds in enumerate(RELATIONS.values()):
                true_bWQK = holds(shown_bWQ[..., None], shown_bWK[..., None, :]) & others_WQK
                even[r] += (true_bWQK.sum(-1) / keys_WQ).sum()
                possible_BR[some, r] += true_bWQK.any(-1).sum((1, 2))
                for half in range(2):
                    met_WQK = true_bWQK[half_B[some] == half].sum(0)
                    offsets[half, r].index_add_(0, offset_WQK, met_WQK.flatten())
    return Possible(even, offsets, possible_BR)


def _patches(batch: HeadBatch, grid: tuple[int, int], pixels: tuple[float, float]) -> Tensor:
    assert batch.objects is not None  # update() looked
    return patches(batch.objects[batch.valid], grid, pixels)


def patches(objects: Tensor, grid: tuple[int, int], pixels: tuple[float, float]) -> Tensor:
    """(B, T) what each patch of a grid shows, from (B, height, width) what each pixel shows."""
    rows, columns = (
        (torch.arange(length, device=objects.device) / size).long().clamp(max=count - 1)
        for length, size, count in zip(objects.shape[1:], pixels, grid, strict=True)
    )
    kinds = int(objects.max()) + 1
    cell_P = (rows[:, None] * grid[1] + columns).flatten()
    counts_BTK = objects.new_zeros(len(objects), grid[0] * grid[1], kinds)
    one_BPK = torch.nn.functional.one_hot(objects.flatten(1), kinds)
    counts_BTK.index_add_(1, cell_P, one_BPK)
    return counts_BTK.argmax(-1)
