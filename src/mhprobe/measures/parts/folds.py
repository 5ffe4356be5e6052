"""The null of a similarity from unrelated images: head a on one image against head b on another, position by position.

Images are swapped in pairs: token t of image i meets token t of its partner. (Permuted rows would
be a null that is far too low, since tokens of an image resemble each other.) A sum has one image at
a time. So images are dealt into F folds by a hash of their pixels, and the sum is kept per fold,
token and channel. With N images, a_it the deviation of head a from its mean at token t, the
cross-covariance of swapped images is

    sum_t (what the means at t share)  +  1/N sum_i a_it b_pi(i)t.

The second term has mean 0 and is nearly Gaussian. The sum of a fold's n_f deviations, over sqrt(n_f
(1 - n_f / N)), has the same covariances as one image's, so the variance of an entry is the mean
over pairs of folds i, j of (sum_t a_it b_jt)^2. It is taken along each head's principal directions,
in which entries hardly covary, and the second term is drawn from it. (Swapped folds would span as
few directions as there are folds.)

Over permutations the variance has the factor N - 1, not N, because deviations sum to 0. Folds of
each head are scaled so that their variance is the one of all images. A pair of heads has one number
per draw: the mean of two (a on b's images, b on a's) would spread less than the value does.
Shapes: C channels of a group, F folds, P folds that a batch has images of, G folds that hold
images.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn

from mhprobe.heads import HeadBatch, HeadSite
from mhprobe.measures.base import MeasureWarning
from mhprobe.measures.parts.jackknife import fold_of
from mhprobe.measures.parts.moments import CHUNK, Moments, Parts

Null = Literal["images", "rolled"]
Rows = tuple[Any, ...]  # a function of a batch that gives (B, T, C) rows, and its further arguments

FOLDS = 64  # unless their sums take more than ``ROOM``
FEWEST = 8  # those of the interval, which the folds of the null divide further
ROOM = 2**30  # bytes of the sums of all groups together
SHIFTS = 2  # each fold meets so many others
AT_ONCE = 2**20  # numbers of products of folds that are multiplied together


class FewFolds(MeasureWarning):
    """The null stands on sums of fewer folds of images, because more would take too much memory."""


def folds_of_null(name: str, floats: int) -> int:
    """Return the number of folds of images that the null of a measure keeps sums of.

    name: of the measure. floats: float64 numbers of a fold. FewFolds warns of fewer than ``FOLDS``.
    """
    folds = FOLDS
    while folds > FEWEST and 8 * floats * folds > ROOM:
        folds //= 2
    if folds < FOLDS:
        rank_zero_warn(
            f"{name}: chance is drawn from {folds} folds of images instead of {FOLDS}, whose sums "
            f"would take {8 * floats * FOLDS / 2**30:.1f} GiB. folds={FOLDS} takes them.",
            FewFolds,
        )
    return folds


@dataclass(frozen=True)
class Folds:
    """Sums of images by fold, updated in place.

    count: (F,) int64 images. total: (F, T, C) float64 their sum.
    """

    count: Tensor
    total: Tensor

    @classmethod
    def zeros(
        cls, folds: int, tokens: int, channels: int, device: torch.device | None = None
    ) -> "Folds":
        total = torch.zeros(folds, tokens, channels, dtype=torch.float64, device=device)
        return cls(torch.zeros(folds, dtype=torch.long, device=device), total)

    def merge(self, dealt: "Dealt") -> None:
        """Add the images of a batch."""
        self.total.index_add_(0, dealt.fold, dealt.total)
        self.count.index_add_(0, dealt.fold, dealt.images)

    def swapped(
        self, heads: Parts, draws: int, seed: int, site: HeadSite | None = None
    ) -> Iterator[Parts]:
        """The same heads with the covariances of swapped images between them, one per draw.

        site: roll one image of each pair on its grid by a random offset; None: do not. Needs two
        folds with images.
        """
        images, tokens = int(self.count.sum()), self.total.shape[1]
        mean_TC = self.total.sum(0) / images
        placed_TC = mean_TC - mean_TC.mean(0)
        (held,) = ((self.count > 0) & (self.count < images)).nonzero(as_tuple=True)
        count_G = self.count[held].double()
        apart_GTC = self.total[held]
        apart_GTC.flatten(1).addr_(count_G, mean_TC.flatten(), alpha=-1)
        apart_GTC /= (count_G * (1 - count_G / images)).sqrt()[:, None, None]
        factor_C = _spread_of_all(heads, apart_GTC, placed_TC, images)
        apart_GTC *= factor_C * ((images - 1) ** 0.5 / (images * tokens - 1)) ** 0.5
        apart_GTHD = apart_GTC.unflatten(2, heads.direction.shape[:2])
        turned_GTC = torch.einsum("gthd,hde->gthe", apart_GTHD, heads.direction).flatten(
            2
        )  # in principal directions
        placed_TC *= (images / (images * tokens - 1)) ** 0.5
        generator = torch.Generator().manual_seed(seed)
        cache: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for draw in range(draws):
            place = slice(None) if site is None else _rolled(site, generator).to(held.device)
            drawn = _Drawn(
                heads, turned_GTC, placed_TC, (seed, draw), cache if site is None else {}, place
            )
            yield dataclasses.replace(heads, covariance=drawn)


@dataclass(frozen=True)
class _Drawn:
    """The covariances of one draw, by runs of channels of whole heads.

    cache: standard deviations, and what the means share, by the runs' beginnings. place: tokens of
    the other images.
    """

    heads: Parts
    turned_GTC: Tensor
    placed_TC: Tensor
    seed: tuple[int, int]
    cache: dict[tuple[int, int], tuple[Tensor, Tensor]]
    place: slice | Tensor

    def __call__(self, one: slice, others: slice) -> Tensor:
        where = (one.start, others.start)
        if where not in self.cache:
            shared = self.placed_TC[:, one].mT @ self.placed_TC[self.place][:, others]
            self.cache[where] = self._deviations(one, others), shared
        deviation, shared = self.cache[where]
        noise = np.random.default_rng([*self.seed, *where]).standard_normal(deviation.shape)
        width = self.heads.spectrum.shape[1]
        left, right = (
            self.heads.direction[run.start // width : run.stop // width] for run in (one, others)
        )
        # drawn as channels: the signs of the directions cancel, and the basis of equal eigenvalues
        # hardly matters
        drawn = _rotated(left.mT, torch.from_numpy(noise).to(left.device), right.mT) * deviation
        return _rotated(left, drawn, right).add_(shared)

    def _deviations(self, one: slice, others: slice) -> Tensor:
        """Standard deviation of each entry along principal directions."""
        folds = len(self.turned_GTC)
        shifts = range(1, min(SHIFTS, folds - 1) + 1)
        ours_GDT, theirs_GTE = (
            self.turned_GTC[..., one].mT,
            self.turned_GTC[:, self.place][..., others],
        )
        square = ours_GDT.new_zeros(ours_GDT.shape[1], theirs_GTE.shape[2])
        at_once = max(1, AT_ONCE // square.numel())
        for shift in shifts:
            # each fold meets the one so many places behind it, the last ones meet the first
            for some, behind in (
                (slice(-shift), slice(shift, None)),
                (slice(-shift, None), slice(shift)),
            ):
                pairs = zip(
                    ours_GDT[some].split(at_once), theirs_GTE[behind].split(at_once), strict=True
                )
                for ours, theirs in pairs:
                    square += (ours @ theirs).square_().sum(0)
        return (square / (folds * len(shifts))).sqrt()


def _rotated(left_ADE: Tensor, entries: Tensor, right_HFG: Tensor) -> Tensor:
    """(A D, H F) left @ (A E, H G) entries @ right^T, head by head."""
    half = left_ADE @ entries.unflatten(0, (len(left_ADE), -1))
    whole = torch.einsum("adhg,hfg->adhf", half.unflatten(2, (len(right_HFG), -1)), right_HFG)
    return whole.flatten(2).flatten(0, 1)


def _spread_of_all(heads: Parts, apart_GTC: Tensor, placed_TC: Tensor, images: int) -> Tensor:
    """(C,) factor of each channel, the same for all of a head, by which its folds vary as its images do."""
    count, width = heads.spectrum.shape
    total_H = heads.spectrum.sum(1) * (heads.rows - 1) - images * placed_TC.square().sum(0).view(
        count, width
    ).sum(1)
    fold_H = torch.linalg.vector_norm(apart_GTC, dim=(0, 1)).square().view(count, width).sum(
        1
    ) / len(apart_GTC)
    factor_H = (total_H.clamp(min=0) / (images - 1) / fold_H.where(fold_H > 0, torch.inf)).sqrt()
    return factor_H.repeat_interleave(width)


class Dealt(NamedTuple):
    """Images of a batch by their folds.

    fold: (P,). images: (P,) of each. total: (P, T, C) float64 their sums.
    """

    fold: Tensor
    images: Tensor
    total: Tensor


def sums_of(batch: HeadBatch, rows: Rows, folds: int, jackknife: int) -> tuple[Moments, Dealt]:
    """Moments of rows, in ``jackknife`` folds, and sums of ``folds`` of the null over the valid images of one batch."""
    make, *arguments = rows
    features = make(batch, *arguments)
    tokens, channels = features.shape[1:]
    moments = Moments.zeros(jackknife, channels, features.device)
    fold_V = fold_of(batch, folds)
    fold_P, place_V, count_P = fold_V.unique(return_inverse=True, return_counts=True)
    total_PTC = torch.zeros(
        len(fold_P), tokens, channels, dtype=torch.float64, device=features.device
    )
    (valid,) = batch.valid.nonzero(as_tuple=True)
    for part in range(jackknife):
        for some in (fold_V % jackknife == part).nonzero()[:, 0].split(max(1, CHUNK // tokens)):
            wide = features[valid[some]].double()  # once for both, while it is in the cache
            moments.add(wide.flatten(0, 1), part)
            total_PTC.index_add_(0, place_V[some], wide)
    return moments, Dealt(fold_P, count_P, total_PTC)


_STATES = {Moments: ("rows", "total", "outer"), Folds: ("fold_images", "folds")}
Sums = TypeVar("Sums", Moments, Folds)


def declare(measure: Metric, group: int, zeros: Moments | Folds) -> None:
    """Add the sums of one group to the states of a measure; ``declared`` returns them."""
    for name, zero in zip(_STATES[type(zeros)], vars(zeros).values(), strict=True):
        measure.add_state(f"{name}_{group}", zero)


def declared(measure: Metric, group: int, kind: type[Sums]) -> Sums:
    return kind(*(getattr(measure, f"{name}_{group}") for name in _STATES[kind]))


def _rolled(site: HeadSite, generator: torch.Generator) -> Tensor:
    """(T,) which token stands where after the grid was rolled by a random offset, not by none; prefix tokens stay."""
    height, width = site.token_grid
    offset = int(torch.randint(1, max(2, height * width), (), generator=generator))
    grid = (
        torch.arange(height * width)
        .view(height, width)
        .roll((offset // width, offset % width), (0, 1))
    )
    return torch.cat([torch.arange(site.prefix_tokens), site.prefix_tokens + grid.flatten()])
