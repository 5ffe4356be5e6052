"""Similarities between heads: the pairs, their second moments, and warnings of doubtful numbers.

Rows are the tokens of all images, channels a head's output before its gate. Mean and covariance of a group's channels
are enough for CCA, SVCCA, PWCCA, linear CKA and Procrustes, so those of a batch are computed once for all of them. So
are the sums per fold of images that the null needs (folds.py).

Shapes: B images, T tokens, C channels of a group, H heads of a group, D head width, A heads of all sites,
R the largest head width, N draws of the null.
"""

import dataclasses
import itertools
import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe import ranks
from mhprobe.errors import UserError, one_of
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.parts.folds import Dealt, Folds, Null, check_rolled, declare, declared, moments_of, sums_of
from mhprobe.measures.parts.jackknife import affordable, jackknife
from mhprobe.measures.parts.moments import Moments, Parts, Seen
from mhprobe.stats.intervals import SHARE

Pairs = Literal["layer", "stage", "all"]
Tokens = Literal["all", "patches"]

_DUPLICATE = 0.99999


class DeadHead(MeasureWarning):
    """A head's output does not vary, so nothing is similar to it."""


class DuplicateHead(MeasureWarning):
    """Two heads do the same, as far as the measure can tell."""


class FewImages(MeasureWarning):
    """There are so few images that unrelated heads seem similar."""


class PairMeasure(Measure):
    """Base of the similarities between heads. A subclass writes ``compare`` and ``rows_null`` for one group's heads.

    pairs: which heads are compared: those of one "layer", of one "stage", or "all". Rows are compared token by token,
        so the sites of a group need the same number of tokens.
    tokens: rows are "all" tokens, or the "patches" without class token and registers, which many heads treat alike.
    null: what is called unrelated. "images": the same two heads, the one on other images than the other, position by
        position; what position alone shares counts as chance. "rolled": the one's grid is rolled as well, by a random
        offset; images - rolled is what position shares. "rows": independent rows, as if the tokens of an image had
        nothing to do with each other; a lower bound, far too low.
    null_draws, seed: permutations (or samples) behind the null, and what they are drawn from.
    folds: images are dealt into so many parts, whose sums are permuted (see folds.py). Memory grows with it.
    interval: keep the sums by eight folds of images, for low and high (see jackknife.py): eight times the memory. None
        for where that takes at most two gigabytes; NoInterval warns where it takes more.

    Columns of all of them: value (A, A), larger is more alike, 1 for a head with itself, 0 for a dead head; low, high
    (A, A): 95 % interval of what as many images give on average, NaN with images in fewer than five folds; read value
    against null (A, A), the mean over the draws; null_sd (A, A), how far the draws spread; null_draws (A, A, N) all of
    them (not for null=rows); images (), rows (A,) of the head's group. NaN outside the groups. null is NaN where all
    images are in one fold, e.g. for a single image.

    UserError with fewer rows than channels of a head; FewImages warns with fewer images than that. DeadHead and
    DuplicateHead (above 0.99999, where chance does not come near that) name heads.
    """

    kind = "pairwise"
    larger = "the two heads are more alike"
    within = SHARE
    equal_up_to: ClassVar[str]  # what the measure cannot see: heads that differ by no more than this are duplicates

    def __init__(
        self,
        layout: HeadLayout,
        pairs: Pairs = "layer",
        tokens: Tokens = "all",
        null: Null = "images",
        null_draws: int = 10,
        seed: int = 0,
        folds: int = 64,
        interval: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        check_null(self.name, null, null_draws, folds)
        one_of(self.name, "tokens", tokens, Tokens)
        if null != "images":
            self.label = f"{self.label}; null={null}"
        self.pairs = pairs
        self.null = null
        self.null_draws = null_draws
        self.seed = seed
        self.folds = folds
        self.groups = groups(self.name, layout, pairs)
        # of each group, how many tokens in front are left out, and how many rows an image has
        self.skipped = [layout.sites[sites[0]].prefix_tokens if tokens == "patches" else 0 for sites in self.groups]
        counts = [token_count(layout.sites[sites[0]]) for sites in self.groups]
        floats = sum(self._channels(sites) ** 2 for sites in self.groups)
        self.jackknife = affordable(self.name, folds, interval, floats)
        self.image_rows = [None if n is None else n - skip for n, skip in zip(counts, self.skipped, strict=True)]
        for number, sites in enumerate(self.groups):
            # as far as the layout tells, refuse now and not after an epoch
            self._check_aligned(sites, [token_count(layout.sites[s]) for s in sites])
            check_rolled(self.name, layout.sites[sites[0]], null)
            declare(self, number, Moments.zeros(self.jackknife, self._channels(sites)))
            self._declare_folds(number, self.image_rows[number])

    @abstractmethod
    def compare(self, group: int, heads: Parts) -> dict[str, Tensor]:
        """Columns of one group, "value" first: (H,), (H, H), or (H, H, D).

        The values of dead heads and of a head with itself may be anything: they are known without computing.
        """

    @abstractmethod
    def rows_null(self, group: int, heads: Parts) -> dict[str, Tensor]:
        """The same for independent rows: "null", and "null_" before the name of any other column that has one."""

    def permuted(self, group: int, heads: Parts, deranged: Parts) -> dict[str, Tensor]:
        """The columns that have a null, of the same heads with other images' covariances between them."""
        return {name: part for name, part in self.compare(group, deranged).items() if name in ("value", "rho")}

    def update(self, batch: HeadBatch) -> None:
        for number, sites in enumerate(self.groups):
            self._check_aligned(sites, [batch.z[s].shape[1] for s in sites])
            self._declare_folds(number, batch.z[sites[0]].shape[1] - self.skipped[number])
        if not batch.valid.any():
            return
        for number, sites in enumerate(self.groups):
            if self.null == "rows":
                moments = batch.derive(_moments, sites, self.skipped[number], self.folds, self.jackknife)
            else:
                moments, sums = batch.derive(_sums, sites, self.skipped[number], self.folds, self.jackknife)
                self._deal(number, sums)
            declared(self, number, Moments).merge(moments)
        self.images += batch.valid.sum()

    def before_sync(self) -> None:
        """A rank that saw no batch learns from the others how many tokens there are."""
        for other in ranks.gather(self.image_rows):
            for number, tokens in enumerate(other):
                self._declare_folds(number, tokens)

    def _declare_folds(self, group: int, tokens: int | None) -> None:
        """Sums per fold, as soon as it is known how many tokens there are."""
        if self.null == "rows" or tokens is None or f"folds_{group}" in self._defaults:
            return
        self.image_rows[group] = tokens
        declare(self, group, Folds.zeros(self.folds, tokens, self._channels(self.groups[group]), self.device))

    def _deal(self, group: int, sums: Dealt) -> None:
        mine = declared(self, group, Folds)
        if mine.total.shape[1:] != sums.total.shape[1:]:
            raise UserError(
                f"{self.name}: images with {sums.total.shape[1]} tokens after images with {mine.total.shape[1]}, whose "
                f"positions cannot be compared. Feed images of one size, or use null=rows."
            )
        mine.merge(sums)

    def _channels(self, sites: tuple[int, ...]) -> int:
        return sum(self.layout.sites[s].channels for s in sites)

    def row_counts(self) -> list[int]:
        """Return the number of rows of each group."""
        return [int(declared(self, number, Moments).rows.sum()) for number in range(len(self.groups))]

    def parts(self, group: int) -> Seen:
        """Return the heads of a group, as all images, or all but a fold, show them."""
        return declared(self, group, Moments).parts(self.layout.sites[self.groups[group][0]].head_dim)

    def finish(self) -> dict[str, Tensor]:
        self._check_rows()
        columns: dict[str, Tensor] = {}
        alive = torch.zeros(self.layout.num_heads, dtype=torch.bool, device=self.device)
        for sites, found in zip(self.groups, ranks.in_turn(self._of_group, len(self.groups)), strict=True):
            flat = torch.cat([torch.arange(self.layout.num_heads)[self.layout.span(s)] for s in sites]).to(self.device)
            alive[flat] = found.pop("alive").to(self.device)
            for name, part in found.items():
                part = part.to(self.device)
                if name not in columns:
                    columns[name] = self._empty(name, part)
                place = (flat[:, None], flat) if part.dim() > 1 else (flat,)
                if part.dim() == 3:
                    place = (*place, slice(part.shape[2]))
                columns[name][place] = part
        warn_dead(self.name, "heads", [head_name(self.layout, a) for a in (~alive).nonzero().flatten().tolist()])
        warn_duplicates(self.name, self.layout, columns["value"], columns["null"], self.equal_up_to)
        return columns

    def _of_group(self, group: int) -> dict[str, Tensor]:
        """The columns of one group, and which of its heads are alive; on the CPU, for other ranks."""
        seen = self.parts(group)
        heads = seen(None)
        compared = self.compare(group, heads)
        found = {
            **jackknife(
                compared["value"],
                lambda fold: self.compare(group, seen(fold))["value"],
                declared(self, group, Moments).rows,
                self.within,
            ),
            **{name: part for name, part in compared.items() if name != "value"},
            **self._null(group, heads),
            "rows": heads.rows.expand(len(heads.alive)),
        }
        both = heads.alive[:, None] & heads.alive
        for name in ("value", "null", "low", "high"):
            found[name] = found[name].where(both, 0.0)
        # exact by definition, but not as computed
        for name in ("value", "low", "high"):
            found[name].diagonal().copy_(heads.alive)
        return {name: part.cpu() for name, part in {**found, "alive": heads.alive}.items()}

    def _null(self, group: int, heads: Parts) -> dict[str, Tensor]:
        """Return the chance columns of one group."""
        if self.null == "rows":
            return self.rows_null(group, heads)
        folds = declared(self, group, Folds)
        if not folds.deranged:
            return {name: part * torch.nan for name, part in _as_null(self.permuted(group, heads, heads)).items()}
        site = self.layout.sites[self.groups[group][0]]
        of_patches = dataclasses.replace(site, prefix_tokens=site.prefix_tokens - self.skipped[group])
        rolled = of_patches if self.null == "rolled" else None
        swapped = folds.swapped(heads, self.null_draws, self.seed, rolled)
        drawn = [self.permuted(group, heads, deranged) for deranged in swapped]
        value_HHN = torch.stack([each["value"] for each in drawn], -1)
        means = {name: torch.stack([each[name] for each in drawn]).mean(0) for name in drawn[0]}
        spread = value_HHN.std(-1, correction=min(1, self.null_draws - 1))
        return {**_as_null(means), "null_sd": spread, "null_draws": value_HHN}

    def _empty(self, name: str, part: Tensor) -> Tensor:
        """Room for all heads of what ``part`` says about a group; NaN where no group says anything."""
        heads, width = self.layout.num_heads, max(site.head_dim for site in self.layout.sites)
        shape = (heads, heads, self.null_draws if name == "null_draws" else width)[: part.dim()]
        return part.new_full(shape, torch.nan) if part.is_floating_point() else part.new_zeros(shape)

    def _check_aligned(self, sites: tuple[int, ...], tokens: list[int | None]) -> None:
        """Rows of a group are tokens side by side: all its sites need equally many, and heads of one width."""
        first = self.layout.sites[sites[0]]
        for s, count in zip(sites, tokens, strict=True):
            site = self.layout.sites[s]
            if count != tokens[0] or site.head_dim != first.head_dim:
                raise UserError(
                    f"{self.name}: pairs={self.pairs} compares {first.name} ({tokens[0] or '?'} tokens, width "
                    f"{first.head_dim}) with {site.name} ({count or '?'} tokens, width {site.head_dim}), "
                    f"expected equal tokens and head widths. Compare fewer heads: pairs=stage or pairs=layer."
                )

    def _check_rows(self) -> None:
        """Judge the group that has the fewest rows for its heads' width."""
        rows = self.row_counts()
        sites = [self.layout.sites[group[0]] for group in self.groups]
        count, site = min(zip(rows, sites, strict=True), key=lambda pair: pair[0] / pair[1].head_dim)
        check_rows(self.name, site.name, count, site.head_dim)
        check_images(self.name, int(self.images), max(site.head_dim for site in sites))


def groups(name: str, layout: HeadLayout, pairs: Pairs) -> tuple[tuple[int, ...], ...]:
    """Site numbers, grouped by what is compared with what. UserError for pairs that are none of the choices."""
    one_of(name, "pairs", pairs, Pairs)
    key = {
        "layer": lambda s: s,
        "stage": lambda s: layout.sites[s].stage,
        "all": lambda s: 0,
    }[pairs]
    return tuple(tuple(sites) for _, sites in itertools.groupby(range(len(layout.sites)), key))


def token_count(site: HeadSite) -> int | None:
    """T of a site, None where only the images tell."""
    return None if site.grid is None else site.prefix_tokens + math.prod(site.grid)


def side_by_side(batch: HeadBatch, sites: tuple[int, ...], skip: int = 0) -> Tensor:
    """(B, T - skip, C) outputs of the heads of ``sites``, without the first tokens."""
    parts = [batch.z[s][:, skip:].flatten(2) for s in sites]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _moments(batch: HeadBatch, sites: tuple[int, ...], skip: int, *folds: int) -> Moments:
    return moments_of(batch, side_by_side(batch, sites, skip), *folds)


def _sums(batch: HeadBatch, sites: tuple[int, ...], skip: int, *folds: int) -> tuple[Moments, Dealt]:
    return sums_of(batch, side_by_side(batch, sites, skip), *folds)


def _as_null(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"null" if name == "value" else f"null_{name}": part for name, part in columns.items()}


def check_null(name: str, null: Null, draws: int, folds: int) -> None:
    """UserError unless a null can be made so."""
    one_of(name, "null", null, Null)
    for option, got, least in (("null_draws", draws, 1), ("folds", folds, 2)):
        if got < least:
            raise UserError(f"{name}: {option} is at least {least}, got {got}.")


def check_rows(name: str, where: str, rows: int, width: int) -> None:
    """Refuse fewer rows than channels."""
    if rows < width:
        raise UserError(
            f"{name}: {where} has n = {rows} rows (tokens of all images) for d = {width} channels, expected at least "
            f"n = d, better 10 d. Use more images."
        )


def check_images(name: str, images: int, width: int) -> None:
    """Warn below as many images as channels. Rows do not count: the tokens of one image say much the same."""
    if images < width:
        rank_zero_warn(
            f"{name}: only {images} images for {width} channels: what is unrelated reaches the level in column null. "
            f"Use more images.",
            FewImages,
        )


def warn_dead(name: str, noun: str, dead: list[str]) -> None:
    """Name what does not vary."""
    if dead:
        rank_zero_warn(f"{name}: similarity 0 for {noun} whose output does not vary: {', '.join(dead)}.", DeadHead)


def warn_duplicates(name: str, layout: HeadLayout, value_AA: Tensor, null_AA: Tensor, up_to: str) -> None:
    """Name the pairs of heads that are equal ``up_to`` something; not where so few rows would make any pair equal."""
    same = ((value_AA > _DUPLICATE) & (null_AA < 0.9)).triu(1)
    pairs = [f"{head_name(layout, a)} and {head_name(layout, b)}" for a, b in same.nonzero().tolist()]
    if pairs:
        rank_zero_warn(f"{name}: above {_DUPLICATE}, so equal up to {up_to}: {', '.join(pairs)}.", DuplicateHead)


def head_name(layout: HeadLayout, flat: int) -> str:
    _, head, site = list(layout)[flat]
    return f"{site.name} head {head}"
