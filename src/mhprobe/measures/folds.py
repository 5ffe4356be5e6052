"""The null of a similarity from unrelated images: head a on one image against head b on another, position by position.

Tokens of one image are not independent rows, so a null that permutes rows is far too low. Here images are permuted:
pi has no fixed point, and token t of image i meets token t of image pi(i). What position alone shares stays in it.

That needs two images at a time, and sums have only one. So images are dealt into F folds by a hash of their pixels,
and per fold, token and channel the sum is kept. With N images, a_it the deviation of head a from its mean at token t,
the permuted cross-covariance is

    sum_t (what the means at t share)  +  1/N sum_i a_it b_pi(i)t.

The second term has mean 0 and a variance that rests on the covariances of a and of b alone. The sum of a fold's n_f
deviations, over sqrt(n_f (1 - n_f / N)), has the same covariance as one image's: F images that stand for all. Permuted
against each other, and scaled from F images to N, they give a cross-covariance of the same mean and variance as N
permuted images do. It is nearly Gaussian, as a mean over N images is. The scale minds that deviations sum to 0: over
permutations sum_i a_i b_pi(i) has the variance N - 1, not N, times those of a and b, and folds are correlated likewise.

Sums over folds depend on no order, batch or rank, and the memory is F x T x C whatever N.

Shapes: B images of a batch, T tokens, C channels of a group, F folds, G folds that hold images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadSite
from mhprobe.measures.hashing import numbers_in
from mhprobe.measures.moments import CHUNK, SecondMoments

Null = Literal["images", "rolled", "rows"]


@dataclass(frozen=True)
class Folds:
    """Add images to their folds, in place.

    count: (F,) int64 images of each fold. total: (F, T, C) float64 their sum.
    """

    count: Tensor
    total: Tensor

    @classmethod
    def zeros(cls, folds: int, tokens: int, channels: int, device: torch.device | None = None) -> Folds:
        return cls(
            torch.zeros(folds, dtype=torch.long, device=device),
            torch.zeros(folds, tokens, channels, dtype=torch.float64, device=device),
        )

    def merge(self, other: Folds) -> None:
        """Take in the images that ``other`` has seen."""
        self.total.add_(other.total)
        self.count.add_(other.count)

    @property
    def deranged(self) -> bool:
        """Return True if there are two folds to permute."""
        return int((self.count > 0).sum()) > 1

    def crosses(self, draws: int, seed: int, site: HeadSite | None = None) -> Iterator[Tensor]:
        """(C, C) covariances with the images of the second permuted, one per draw, divided as a covariance of rows.

        site: roll the second one's grid as well, by a random offset. Needs two folds with images.
        """
        images, tokens = int(self.count.sum()), self.total.shape[1]
        mean_TC = self.total.sum(0) / images
        placed_TC = mean_TC - mean_TC.mean(0)
        (held,) = ((self.count > 0) & (self.count < images)).nonzero(as_tuple=True)
        count_G = self.count[held, None, None].double()
        apart_GTC = (self.total[held] - count_G * mean_TC) / (count_G * (1 - count_G / images)).sqrt()
        scale = ((images - 1) * (len(held) - 1)) ** 0.5 / len(held)
        fixed_CC = images * placed_TC.mT @ placed_TC
        generator = torch.Generator().manual_seed(seed)
        for _ in range(draws):
            order = torch.randperm(len(held), generator=generator).to(held.device)
            partner = torch.empty_like(order).scatter_(0, order, order.roll(1))  # a cycle: nobody meets itself
            theirs_GTC = apart_GTC[partner]
            if site is not None:
                place = _rolled(site, generator).to(held.device)
                theirs_GTC, fixed_CC = theirs_GTC[:, place], images * placed_TC.mT @ placed_TC[place]
            cross = torch.addmm(fixed_CC, apart_GTC.flatten(0, 1).mT, theirs_GTC.flatten(0, 1), alpha=scale)
            yield cross.div_(images * tokens - 1)


def sums_of(batch: HeadBatch, folds: int, features: Tensor) -> tuple[SecondMoments, Folds]:
    """Moments of rows and sums of folds over the valid images of one batch. features: (B, T, C)."""
    tokens, channels = features.shape[1:]
    moments = SecondMoments.zeros(channels, features.device)
    sums = Folds.zeros(folds, tokens, channels, features.device)
    images, at_once = features if batch.valid.all() else features[batch.valid], max(1, CHUNK // tokens)
    fold_B = batch.derive(_fold_of, folds)
    for some, fold in zip(images.split(at_once), fold_B.split(at_once), strict=True):
        wide = some.double()  # once for both, while it is in the cache
        moments.add_products(wide.flatten(0, 1))
        sums.total.index_add_(0, fold, wide)
    sums.count.add_(torch.bincount(fold_B, minlength=folds))
    moments.total.add_(sums.total.sum((0, 1)))
    return moments, sums


_STATES = {SecondMoments: ("rows", "total", "outer"), Folds: ("fold_images", "folds")}
Sums = TypeVar("Sums", SecondMoments, Folds)


def declare(measure: Metric, group: int, zeros: SecondMoments | Folds) -> None:
    """Sums of one group as states of a measure; ``declared`` gives them back."""
    for name, zero in zip(_STATES[type(zeros)], vars(zeros).values(), strict=True):
        measure.add_state(f"{name}_{group}", zero)


def declared(measure: Metric, group: int, kind: type[Sums]) -> Sums:
    return kind(*(getattr(measure, f"{name}_{group}") for name in _STATES[kind]))


def check_rolled(name: str, site: HeadSite, null: Null) -> None:
    """UserError where a grid is to be rolled that nobody knows."""
    if null == "rolled" and site.grid is None:
        raise UserError(
            f"{name}: null=rolled rolls the grid of {site.name}, which is not fixed: the model takes images of any "
            f"size. Use null=images."
        )


def _fold_of(batch: HeadBatch, folds: int) -> Tensor:
    """(valid images,) the fold of each."""
    return (numbers_in(batch) >> 8) % folds


def _rolled(site: HeadSite, generator: torch.Generator) -> Tensor:
    """(T,) which token stands where after the grid was rolled by a random offset, not by none; prefix tokens stay."""
    height, width = site.token_grid
    offset = int(torch.randint(1, max(2, height * width), (), generator=generator))
    grid = torch.arange(height * width).view(height, width).roll((offset // width, offset % width), (0, 1))
    prefix = torch.arange(site.prefix_tokens)
    return torch.cat([prefix, site.prefix_tokens + grid.flatten()])
