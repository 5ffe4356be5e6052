"""Attention rollout: attention of all blocks chained, with the residual stream as an equal partner.

Abnar & Zuidema 2020, arXiv 2005.00928: A~ = 0.5 fuse_h(A) + 0.5 I with rows normalised to 1, and
rollout_l = A~_l rollout_(l-1). The options are those of the vit-explain package, whose code
normalises columns instead of rows, and discards by the first image's weights for a whole batch. We
follow the formula.

Swin is ours: a token's row of the T x T matrix is zero outside its window, and padding hands
nothing on. At a patch merging the merged token's row is the mean of its children's, so the map is
over the first stage's grid.

Shapes: T tokens of a block, S tokens of the first block.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout, HeadSite, Need, Weights
from mhprobe.heads.attention import CHUNK
from mhprobe.io.machine import free_memory
from mhprobe.maps.base import MapKind, as_grid, gated_layout, readout
from mhprobe.recording.checks import numbers_of
from mhprobe.recording.record import record

Fusion = Literal["mean", "max", "min"]


class Rollout(MapKind):
    """The map "rollout" (B, h, w) over the first block's grid: what reaches the class token (or the mean token).

    fusion: over heads with open gates. discard: share of each image's smallest fused weights, block
        by block, that is set to 0, but the class token's on itself. Raises UserError for other
        fusions and shares outside [0, 1).
    """

    kind: ClassVar[str] = "rollout"

    def __init__(self, fusion: Fusion = "mean", discard: float = 0.0) -> None:
        refuse_discard(discard, self.kind)
        self.fusion, self.discard = fusion, discard

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        layout = gated_layout(model)
        if not self.discard and one_grid(layout):
            read = self._read_back(model, self.rows(model, images, labels), layout)
        else:
            refuse_product(self.kind, layout)
            fused = zip(
                fuse(model, self.weights(model, images, labels), self.fusion),
                layout.sites,
                strict=True,
            )
            chained = chain(
                layout, [transition(weights, site, self.discard) for weights, site in fused]
            )
            read = readout(chained, layout.sites[-1])
        return {self.kind.replace("_", " "): as_grid(read, layout.sites[0])}

    needs: ClassVar[tuple[Need, Need]] = ("rows", "attn")  # read row by row, or as matrices

    def held(self, layout: HeadLayout) -> float:
        by_rows = not self.discard and one_grid(layout)
        if by_rows:
            return 4 * numbers_of(layout, {self.needs[0]})
        return 4 * numbers_of(layout, {self.needs[1]}) + product(layout)

    def rows(self, model: nn.Module, images: Tensor, labels: Tensor | None) -> tuple[Weights, ...]:
        """Attention of each site, from which the map is made row by row."""
        rows = record(model, images, labels, needs={"rows"}).rows
        assert rows is not None
        return rows

    def part(self, weights: Weights, rows: Tensor, queries: Tensor) -> Tensor:
        """(B, H, q, K) what heads are fused of, for these queries."""
        return weights.at(rows, queries)

    def _read_back(self, model: nn.Module, rows: Sequence[Weights], layout: HeadLayout) -> Tensor:
        """(B, S) row of the chain that is read out: from the last site back, a vector times a matrix at a time.

        No matrix of all queries comes to be.
        """
        gates, site = gates_of(model), layout.sites[-1]
        tokens, images = rows[-1].shape[2], rows[-1].shape[0]
        site.refuse_other_size(tokens, self.kind)
        asked_T = readout(torch.eye(tokens, device=rows[-1].device), site)
        reach_BT = asked_T.expand(images, -1)
        open_by_site = [gate_H != 0 for gate_H in gates.layout.split(gates.effective())]
        for weights, open_H in zip(
            reversed(rows), reversed(open_by_site[: len(rows)]), strict=True
        ):
            reach_BT = self._one_back(weights, open_H, reach_BT)
        return reach_BT

    def _one_back(self, weights: Weights, open_H: Tensor, reach_BT: Tensor) -> Tensor:
        """(B, K) what reaches the tokens before a site, from what reaches those behind it."""
        images, heads, _, keys = weights.shape
        (queries,) = (reach_BT != 0).any(0).nonzero(as_tuple=True)
        every = torch.arange(images, device=queries.device)
        found_BK: Tensor | None = None
        for some in queries.split(max(1, CHUNK // (images * heads * keys))):
            mixed_BqK = 0.5 * _over(self.part(weights, every, some)[:, open_H], self.fusion, 1)
            mixed_BqK[:, torch.arange(len(some)), some] += 0.5
            mixed_BqK = mixed_BqK / mixed_BqK.sum(-1, keepdim=True)
            part_BK = torch.einsum("bq,bqk->bk", reach_BT[:, some].to(mixed_BqK), mixed_BqK)
            found_BK = part_BK if found_BK is None else found_BK + part_BK
        assert found_BK is not None  # something is read out
        return found_BK

    def weights(self, model: nn.Module, images: Tensor, labels: Tensor | None) -> Iterable[Tensor]:
        """(B, W, H, K, K) of each site, from which the map is made."""
        return record(model, images, needs={"attn"}).need("attn", self.kind)


def product(layout: HeadLayout) -> float:
    """Bytes of the product of all blocks: N x N numbers for each, and the chain so far and its next; 0 if unknown."""
    first = layout.sites[0]
    if not first.attention_size:
        return 0
    tokens = first.prefix_tokens + math.prod(first.token_grid)
    return 4 * (len(layout.sites) + 2) * tokens**2


def refuse_product(kind: str, layout: HeadLayout) -> None:
    """Raise UserError for a ``product`` that is larger than the free memory of the machine."""
    held, free = product(layout), free_memory()
    if held > free:
        first = layout.sites[0]
        side = first.token_grid[0] * first.pixels[0]
        fits = math.floor(
            side * (free / held) ** 0.25
        )  # its square is the tokens, and theirs the product
        raise UserError(
            f"{kind}: its product of tokens x tokens takes {held / 2**30:.2f} GiB in "
            f"{len(layout.sites)} blocks, and {free / 2**30:.2f} GiB are free. Build the network for "
            f"smaller images: img_size={fits} would fit."
        )


def refuse_discard(discard: float, kind: str) -> None:
    """Raise UserError for a share to discard outside [0, 1)."""
    if not 0 <= discard < 1:
        raise UserError(f"{kind}: discard is a share from 0 to below 1, got {discard}.")


def fuse(model: nn.Module, attn: Iterable[Tensor], fusion: Fusion) -> Iterator[Tensor]:
    """(B, W, H, K, K) of each site -> (B, W, K, K), of the heads whose gates are open: 0 if there are none."""
    gates = gates_of(model)
    for weights, gate_H in zip(attn, gates.layout.split(gates.effective()), strict=False):
        yield _over(weights[:, :, gate_H != 0], fusion, 2)


def _over(of_open: Tensor, fusion: Fusion, dim: int) -> Tensor:
    """Fuse the dimension of open heads; 0 if there are none."""
    over_heads = {"mean": "mean", "max": "amax", "min": "amin"}[fusion]
    return getattr(of_open, over_heads if of_open.shape[dim] else "sum")(dim)


def one_grid(layout: HeadLayout) -> bool:
    """Return True if all sites have the same tokens, without windows: rows of their attention can be chained."""
    sites = layout.sites
    return len({(site.windows, site.prefix_tokens, site.grid) for site in sites}) == 1 and (
        sites[0].windows is None and sites[0].grid is not None
    )


def chain(
    layout: HeadLayout, rows: Sequence[Tensor], first: int = 0, rolled: Tensor | None = None
) -> Tensor:
    """(B, T of the last, S) chained ``transition``s (B, W, K, K) of the sites from number ``first`` on.

    rolled: (B, T, S), the chain of the sites before. Attentions side by side in one block are
    chained one after the other.
    """
    if rolled is None:
        tokens = int(layout.sites[0].places().max()) + 1
        rolled = torch.eye(tokens, dtype=rows[0].dtype, device=rows[0].device).expand(
            len(rows[0]), -1, -1
        )
    for number, weights in enumerate(rows, first):
        site = layout.sites[number]
        before = carried(rolled, layout.sites[max(0, number - 1)], site)
        places = site.places().to(rolled.device)
        moved_BWKS, real = (
            weights @ before[:, places.clamp(min=0)],
            places >= 0,
        )  # a padded key's weight is 0
        rolled = torch.empty_like(before)
        rolled[:, places[real]] = moved_BWKS[:, real]
    return rolled


def drop_lowest(fused: Tensor, site: HeadSite, discard: float) -> Tensor:
    """Set the lowest share ``discard`` of each image's weights to 0, counted among pairs that may attend."""
    if not discard:
        return fused
    support = site.support().to(fused.device)
    allowed_BP = fused[:, support]
    lowest = allowed_BP.argsort(1)[:, : int(discard * allowed_BP.shape[1])]
    thinned = fused.clone()
    thinned[:, support] = allowed_BP.scatter(1, lowest, 0.0)
    if site.class_token:
        thinned[:, 0, 0, 0] = fused[:, 0, 0, 0]
    return thinned


def transition(weights: Tensor, site: HeadSite, discard: float = 0.0) -> Tensor:
    """0.5 A + 0.5 I, rows normalised to 1, after ``drop_lowest``; padding is no key."""
    site.refuse_other_size(weights.shape[1] * weights.shape[-1], "rollout")
    weights = drop_lowest(weights, site, discard)
    support = site.support().to(weights.device)
    identity = torch.eye(support.shape[-1], dtype=weights.dtype, device=weights.device)
    mixed = 0.5 * weights * support + 0.5 * identity
    return mixed / mixed.sum(-1, keepdim=True)


def carried(rolled: Tensor, before: HeadSite, site: HeadSite) -> Tensor:
    """(B, T, S) rows of the tokens of ``before`` -> rows of those of ``site``: the same, or merged as Swin does.

    A merged row is the mean of its 2 x 2 neighbours; on an odd grid padding has no row. UserError
    for other tokens.
    """
    (prefix, grid), now = ((one.prefix_tokens, one.token_grid) for one in (before, site))
    if now == (prefix, grid):
        return rolled
    if now != (0, tuple(-(-side // 2) for side in grid)) or prefix:
        raise UserError(
            f"rollout: the tokens of {site.name} are neither those of {before.name} nor 2 x 2 of "
            "them, merged: their "
            f"attention cannot be chained. Look at single blocks: maps=[attention]."
        )
    return (
        F.avg_pool2d(rolled.transpose(1, 2).unflatten(2, grid), 2, ceil_mode=True)
        .flatten(2)
        .transpose(1, 2)
    )
