"""Does a head look at the object, and does it follow a relation between patches better than a fixed offset would?

For language, Clark et al. 2019, arXiv 1906.04341, section 4: a head's prediction for a word is the word it attends to
most; per relation, the best head is compared with the best fixed offset. Here words are patches, and a relation says
on which object the patch attended to most must lie. A patch shows what most of its pixels show (of equals the one with
the lowest number, 0 being the ground).

Prefix tokens are left out: as keys always; as queries except for the column ``cls``. In a windowed site only pairs of
the same window and shift region count, for heads, offsets and chance alike.

Shapes: B images, W windows, Q queries, K keys, H heads of one site, T grid tokens, A heads of all sites,
R relations, S sites, O offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, mean_of
from mhprobe.measures.places import attention_of, places_of, where_site
from mhprobe.stats.significance import Z95, standard_error

# what the query shows, what the key shows (0: ground; other numbers: objects) -> whether the relation holds
RELATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "same object": lambda query, key: (query > 0) & (key == query),
    "other object": lambda query, key: (query > 0) & (key > 0) & (key != query),
    "object to ground": lambda query, key: (query > 0) & (key == 0),
    "ground to object": lambda query, key: (query == 0) & (key > 0),
}
_CHUNK = 2**25  # pairs of patches looked at together


class ObjectAttention(Measure):
    """Share of patches whose most attended patch lies on an object.

    Columns, (A,) shares in [0, 1], larger means more often:
        value: over images the mean share of query patches whose argmax key is on an object; low, high: its 95 % normal
        interval over images; chance: the same for a key drawn evenly from those that may be attended to; mass: mean
        attention that a patch gives to patches on objects; cls: share of images whose class token has its argmax on an
        object, NaN without one;
        relations (A, R): accuracy of the argmax key, the query itself left out, over the queries for which the relation
        can be met; offset (A, R): that of the best fixed offset at the head's site; even (A, R): that of an even draw.
        best_down, best_right (A, R): the best offset, in patches.
    """

    needs = frozenset({"attn"})
    label = "share of patches whose argmax key is on an object"
    also = ("relations",)

    share: Tensor  # (A,) sum over images of the share of patches whose argmax key is on an object
    square: Tensor  # (A,) sum of its square
    chance: Tensor  # (A,) sum of the share that an even draw would have
    mass: Tensor  # (A,) sum of the mean attention to patches on objects
    cls: Tensor  # (A,) images whose class token looks at an object
    followed: Tensor  # (A, R) queries whose argmax key meets the relation
    even: Tensor  # (S, R) sum over queries of the share of keys that meet it
    possible: Tensor  # (S, R) queries that can meet it

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self.axes = {key: list(RELATIONS) for key in ("relations", "offset", "even", "best_down", "best_right")}
        heads, sites, relations = layout.num_heads, len(layout.sites), len(RELATIONS)
        for name in ("share", "square", "chance", "mass"):
            self.add_state(name, torch.zeros(heads, dtype=torch.float64))
        self.add_state("cls", torch.zeros(heads, dtype=torch.long))
        self.add_state("followed", torch.zeros(heads, relations, dtype=torch.long))
        self.add_state("even", torch.zeros(sites, relations, dtype=torch.float64))
        self.add_state("possible", torch.zeros(sites, relations, dtype=torch.long))
        for number, site in enumerate(layout.sites):
            height, width = site.token_grid
            offsets = (2 * height - 1) * (2 * width - 1)
            self.add_state(f"offsets_{number}", torch.zeros(relations, offsets, dtype=torch.long))

    def update(self, batch: HeadBatch) -> None:
        if batch.objects is None:
            raise UserError(
                "object_attention: the data set has no object masks, expected them beside the images. Use data=scenes, "
                "data=pets or leave the measure out."
            )
        if not batch.valid.any():
            return
        objects = batch.objects[batch.valid]
        for number, site in enumerate(self.layout.sites):
            attn = attention_of(self.name, self.layout, batch, number)
            shown_BT = batch.derive(_patches, site.token_grid, site.pixels)
            if batch.valid.all():
                self._site(number, site, attn, shown_BT)
            else:
                self._site(number, site, attn[batch.valid], shown_BT)
        self.images += len(objects)

    def _site(self, number: int, site: HeadSite, attn_BWHQK: Tensor, shown_BT: Tensor) -> None:
        """Add one site's counts."""
        places = places_of(site, attn_BWHQK.device)
        places_WK, grid_WK, pairs_WQK = places.token, places.patch, places.patch_pairs
        shown_BWK = shown_BT[:, (places_WK - site.prefix_tokens).clamp(min=0)]
        span = self.layout.span(number)
        self._overall(span, site, attn_BWHQK, shown_BWK, grid_WK, pairs_WQK)

        offsets_WQK = _offsets(places_WK - site.prefix_tokens, site.token_grid)
        others_WQK = pairs_WQK & ~torch.eye(pairs_WQK.shape[-1], dtype=torch.bool, device=pairs_WQK.device)
        step = max(1, _CHUNK // (others_WQK.numel() * attn_BWHQK.shape[2]))
        chunks = list(zip(attn_BWHQK.split(step), shown_BWK.split(step), strict=True))
        best = [attn.masked_fill(~others_WQK[None, :, None], -1).argmax(-1).transpose(2, 3) for attn, _ in chunks]
        for r, holds in enumerate(RELATIONS.values()):
            for (_, shown), best_BWQH in zip(chunks, best, strict=True):
                true_BWQK = holds(shown[..., :, None], shown[..., None, :]) & others_WQK
                possible_BWQ = true_BWQK.any(-1)
                hit_BWQH = true_BWQK.gather(-1, best_BWQH) & possible_BWQ[..., None]
                self.followed[span, r] += hit_BWQH.sum((0, 1, 2))
                self.possible[number, r] += possible_BWQ.sum()
                even_BWQ = true_BWQK.sum(-1).double() / others_WQK.sum(-1).clamp(min=1)
                self.even[number, r] += even_BWQ.sum()
                counts: Tensor = getattr(self, f"offsets_{number}")
                counts[r].index_add_(0, offsets_WQK.flatten(), true_BWQK.sum(0).flatten())

    def _overall(
        self, span: slice, site: HeadSite, attn_BWHQK: Tensor, shown_BWK: Tensor, grid_WK: Tensor, pairs_WQK: Tensor
    ) -> None:
        on_BWK = (shown_BWK > 0) & grid_WK
        best_BWHQ = attn_BWHQK.masked_fill(~pairs_WQK[None, :, None], -1).argmax(-1)
        hit_BWHQ = on_BWK.gather(2, best_BWHQ.flatten(2)).view_as(best_BWHQ) & grid_WK[:, None]
        queries = grid_WK.sum()
        share_BH = hit_BWHQ.sum((1, 3)).double() / queries
        even_BWQ = (on_BWK[:, :, None] & pairs_WQK).sum(-1).double() / pairs_WQK.sum(-1).clamp(min=1)
        # image by image: float64 is large
        for attn, on_BWK1 in zip(attn_BWHQK, on_BWK.double()[..., None], strict=True):
            given_WHQ = ((attn.double() * pairs_WQK[:, None]) @ on_BWK1[:, None])[..., 0]
            self.mass[span] += given_WHQ.sum((0, 2)) / queries
        self.share[span] += share_BH.sum(0)
        self.square[span] += share_BH.square().sum(0)
        self.chance[span] += (even_BWQ * grid_WK).sum() / queries
        if site.class_token:
            row_BHK = attn_BWHQK[:, 0, :, 0].masked_fill(~grid_WK[0], -1)
            self.cls[span] += on_BWK[:, 0].gather(1, row_BHK.argmax(-1)).sum(0)

    def finish(self) -> dict[str, Tensor]:
        value = self.share / self.images
        half = Z95 * standard_error(self.share, self.square, self.images)
        site_of_head = torch.tensor([number for number, _, _ in self.layout], device=value.device)
        possible_SR = self.possible.double()
        offset, down, right = (torch.stack(parts)[site_of_head] for parts in zip(*self._best_offsets(), strict=True))
        return {
            "value": value,
            "low": value - half,
            "high": value + half,
            "chance": self.chance / self.images,
            "mass": self.mass / self.images,
            "cls": where_site(self.layout, self.cls / self.images, lambda site: site.class_token),
            "relations": mean_of(self.followed, possible_SR[site_of_head]),
            "offset": mean_of(offset, possible_SR[site_of_head]),
            "even": mean_of(self.even, possible_SR)[site_of_head],
            "best_down": down,
            "best_right": right,
            "images": self.images.clone(),
        }

    def _best_offsets(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Per site and relation: how often the best offset was right, and how far down and right it points."""
        found = []
        for number, site in enumerate(self.layout.sites):
            height, width = site.token_grid
            count, best = getattr(self, f"offsets_{number}").max(-1)
            found.append((count.double(), best // (2 * width - 1) - height + 1, best % (2 * width - 1) - width + 1))
        return found


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


def _offsets(tokens_WK: Tensor, grid: tuple[int, int]) -> Tensor:
    """(W, Q, K) a number for (rows, columns) from query to key; where there is no token, any number."""
    down, right = tokens_WK.clamp(min=0) // grid[1], tokens_WK.clamp(min=0) % grid[1]
    d, r = (part[:, None, :] - part[:, :, None] for part in (down, right))
    return (d + grid[0] - 1) * (2 * grid[1] - 1) + r + grid[1] - 1
