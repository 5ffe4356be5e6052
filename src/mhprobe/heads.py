"""What a head is, where it sits, and what it did on a batch.

A head is a declared set of input channels of its block's output projection ``proj``: head h of a site owns
channels ``h * head_dim ... (h + 1) * head_dim - 1``. ``HeadLayout`` is the one place that converts between
(site, head) and the flat index that gates, masks, measures and tables share. Layouts are ragged: Swin-T has
3, 6, 12, 24 heads in its stages, 138 in all.

Shapes: B images, T tokens (prefix tokens first, then the grid in raster order), H heads of one site,
D head width, A heads of all sites, C classes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError


@dataclass(frozen=True)
class Windows:
    """How a windowed site cuts its (height, width) grid: ``size`` per window, after a roll by ``-shift``."""

    grid: tuple[int, int]
    size: tuple[int, int]
    shift: tuple[int, int]

    def rows(self) -> Tensor:
        """(T,) position of raster token t among one image's windowed rows (windows x tokens per window).

        Found by moving an image of raster indices the way the block moves its tokens: roll, pad, partition.
        Padding rows hold no token and are dropped.
        """
        (height, width), (win_h, win_w) = self.grid, self.size
        index = torch.arange(height * width).view(height, width)
        index = torch.roll(index, (-self.shift[0], -self.shift[1]), (0, 1))
        pad_h, pad_w = -height % win_h, -width % win_w
        index = torch.nn.functional.pad(index, (0, pad_w, 0, pad_h), value=-1)
        index = index.view((height + pad_h) // win_h, win_h, (width + pad_w) // win_w, win_w)
        token_of_row = index.permute(0, 2, 1, 3).flatten()
        rows = torch.empty(height * width, dtype=torch.long)
        (occupied,) = torch.nonzero(token_of_row >= 0, as_tuple=True)
        rows[token_of_row[occupied]] = occupied
        return rows


@dataclass(frozen=True)
class HeadSite:
    """The heads of one attention module.

    name: the attention module's name in the model, e.g. ``blocks.0.attn``; its projection is ``<name>.proj``.
    stage, block: position in the network; ``block`` counts from 0 through all stages.
    windows: None for global attention.
    prefix_tokens: class, distillation and register tokens that stand before the grid.
    """

    name: str
    stage: int
    block: int
    num_heads: int
    head_dim: int
    prefix_tokens: int = 0
    windows: Windows | None = None

    @property
    def channels(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class HeadLayout:
    """The heads of a model: an ordered tuple of sites, and the flat numbering over all of them."""

    sites: tuple[HeadSite, ...]

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Flat index of each site's head 0, with the total appended: length ``len(sites) + 1``."""
        return tuple(sum(site.num_heads for site in self.sites[:i]) for i in range(len(self.sites) + 1))

    @property
    def num_heads(self) -> int:
        """A, the number of heads of all sites."""
        return self.offsets[-1]

    @property
    def num_stages(self) -> int:
        return 1 + max(site.stage for site in self.sites)

    def span(self, site: int) -> slice:
        """The flat indices of one site's heads."""
        return slice(self.offsets[site], self.offsets[site + 1])

    def flat(self, site: int, head: int) -> int:
        """Flat index of head ``head`` of site number ``site``."""
        num_heads = self.sites[site].num_heads
        if not 0 <= head < num_heads:
            raise UserError(f"{self.sites[site].name} has heads 0 to {num_heads - 1}, got {head}.")
        return self.offsets[site] + head

    def __iter__(self) -> Iterator[tuple[int, int, HeadSite]]:
        """(site number, head within the site, site) for each flat index in turn."""
        for number, site in enumerate(self.sites):
            for head in range(site.num_heads):
                yield number, head, site

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., A) -> one (..., H) view per site."""
        return values.split([site.num_heads for site in self.sites], dim=-1)

    def mask(self, heads: Sequence[int] | Tensor) -> Tensor:
        """(A,) bool mask from flat indices, or a checked copy of a mask. True means: this head is off."""
        heads = torch.as_tensor(heads)
        if heads.dtype == torch.bool:
            if heads.shape != (self.num_heads,):
                raise UserError(
                    f"mask: expected shape ({self.num_heads},), one entry per head of {len(self.sites)} sites, "
                    f"got {tuple(heads.shape)}. Was it made for another model?"
                )
            return heads.clone()
        mask = torch.zeros(self.num_heads, dtype=torch.bool)
        if heads.numel():
            if heads.is_floating_point() or heads.min() < 0 or heads.max() >= self.num_heads:
                raise UserError(f"mask: head indices are whole numbers from 0 to {self.num_heads - 1}, got {heads}.")
            mask[heads.long()] = True
        return mask


@dataclass(frozen=True)
class HeadBatch:
    """What the heads did in one forward pass, and one backward pass where it was asked for.

    z: per site (B, T, H, D), the heads' outputs before the gate. Windowed sites are put back in raster order.
    grad: per site (B, T, H, D), d(loss of the image)/d(gated z); taken after the gate, so that a masked head
        keeps its slope. sum over T, D of z * grad is d(loss of the image)/d(gate).
    attn: per site the softmaxed weights (B, windows, H, queries, keys); one window for global attention.
    logits: (B, C). labels: (B,). loss: (B,) cross-entropy per image, in nats.
    valid: (B,) bool, False for images that only pad the batch: they never enter a sum.
    """

    z: tuple[Tensor, ...]
    logits: Tensor
    valid: Tensor
    labels: Tensor | None = None
    loss: Tensor | None = None
    grad: tuple[Tensor, ...] | None = None
    attn: tuple[Tensor, ...] | None = None


def wide(tensor: Tensor) -> Tensor:
    """At least float32: products of bfloat16 or half features keep too few digits to be summed."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
