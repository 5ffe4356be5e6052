"""Similarities between heads, layers or blocks: the pairs, their second moments, and warnings of doubtful numbers.

Rows are the tokens of all images, channels e.g. a head's output before its gate. Mean and covariance of a group's
channels, and sums per fold of images for the null (folds.py), are all that a similarity needs. Those of a batch are
computed once for all similarities.

Shapes: B images, T tokens, C channels of a group, H parts of a group (heads, layers or blocks), D their width, A parts
of all groups, R the largest width, N draws of the null.
"""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe import ranks
from mhprobe.errors import UserError, one_of, whole_number
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.parts.folds import Folds, Null, Rows, declare, declared, sums_of
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


class Similarity(Measure):
    """Base of the similarities between parts of a network. A subclass says what the parts are and compares them.

    null: what is called unrelated. "images": the same two parts, the one on other images than the other, position by
        position; what position alone shares counts as chance. "rolled": the one's grid is rolled as well, by a random
        offset; images - rolled is what position shares. "rows": independent rows, as if the tokens of an image had
        nothing to do with each other; a lower bound, far too low.
    null_draws, seed: permutations (or samples) behind the null, and what they are drawn from.
    folds: images are dealt into so many parts, whose sums are permuted (see folds.py). Memory grows with it.
    interval: keep the sums by eight folds of images, for low and high (see jackknife.py): eight times the memory. None
        for where that takes at most two gigabytes; NoInterval warns where it takes more.
    groups: site numbers that are compared with each other, row by row.

    Columns of all of them: value (A, A), larger is more alike, 1 for a part with itself, 0 for a dead one; low, high
    (A, A): 95 % interval of what as many images give on average, NaN with images in fewer than five folds; read value
    against null (A, A), the mean over the draws, NaN where all images are in one fold; null_sd (A, A), how far the
    draws spread; null_draws (A, A, N) all of them (not for null=rows); images (), rows (A,) of the part's group. NaN
    outside the groups.

    UserError with fewer rows than channels of a part; FewImages warns with fewer images than that, DeadHead names parts
    that do not vary.
    """

    within = SHARE
    noun: ClassVar[str] = "heads"  # of the parts, for messages

    def __init__(
        self,
        layout: HeadLayout,
        groups: Sequence[tuple[int, ...]],
        null: Null = "images",
        null_draws: int = 10,
        seed: int = 0,
        folds: int = 64,
        interval: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        one_of(self.name, "null", null, Null)
        for option, got, least in (("null_draws", null_draws, 1), ("folds", folds, 2)):
            whole_number(f"{self.name}: {option}", got, least)
        if null != "images":
            self.label = f"{self.label}; null={null}"
        self.null, self.null_draws, self.seed, self.folds, self.interval = null, null_draws, seed, folds, interval
        self.groups = groups
        self.skipped = [0] * len(groups)  # tokens in front that are left out, by group
        self.shapes: list[tuple[int, int]] = []  # tokens of an image and D, by group, once a batch tells
        for site in (layout.sites[sites[0]] for sites in groups):
            if null == "rolled" and site.grid is None:
                raise UserError(
                    f"{self.name}: null=rolled rolls the grid of {site.name}, which is not fixed: the model takes "
                    f"images of any size. Use null=images."
                )

    @property
    def names(self) -> list[str]:
        """(A,) names of the parts."""
        return head_names(self.layout) if self.kind == "pairwise" else [site.name for site in self.layout.sites]

    def members(self, group: int) -> Tensor:
        """(H,) numbers of a group's parts among all."""
        sites = self.groups[group]
        return flat_heads(self.layout, sites) if self.kind == "pairwise" else torch.tensor(sites)

    @abstractmethod
    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        """Rows of an image, and D. UserError where the parts of a group differ in their tokens."""

    @abstractmethod
    def rows_of(self, group: int) -> Rows:
        """The function that gives a batch's (B, T, C) rows, and its further arguments."""

    @abstractmethod
    def compare(self, heads: Parts) -> dict[str, Tensor]:
        """Columns of one group, "value" first: (H,), (H, H), or (H, H, D).

        The values of dead parts and of a part with itself may be anything: they are known without computing.
        """

    @abstractmethod
    def rows_null(self, heads: Parts) -> dict[str, Tensor]:
        """The same for independent rows: "null", and "null_" before the name of any other column that has one."""

    def permuted(self, heads: Parts, deranged: Parts) -> dict[str, Tensor]:
        """The columns that have a null, of the same parts with other images' covariances between them."""
        return {name: part for name, part in self.compare(deranged).items() if name in ("value", "rho")}

    def check_rows(self) -> None:
        """Judge the group that has the fewest rows for its parts' width; warn of fewer images than channels.

        Rows do not count there: the tokens of one image say much the same.
        """
        rows = [int(declared(self, number, Moments).rows.sum()) for number in range(len(self.groups))]
        widths = [width for _, width in self.shapes]
        sites = [self.layout.sites[group[0]] for group in self.groups]
        count, width, site = min(zip(rows, widths, sites, strict=True), key=lambda each: each[0] / each[1])
        if count < width:
            raise UserError(
                f"{self.name}: {site.name} has n = {count} rows (tokens of all images) for d = {width} channels, "
                f"expected at least n = d, better 10 d. Use more images."
            )
        if int(self.images) < max(widths):
            rank_zero_warn(
                f"{self.name}: only {int(self.images)} images for {max(widths)} channels: what is unrelated reaches "
                f"the level in column null. Use more images.",
                FewImages,
            )

    def update(self, batch: HeadBatch) -> None:
        self.declare([self.shape(group, batch) for group in range(len(self.groups))])
        super().update(batch)

    def add(self, batch: HeadBatch) -> None:
        for group in range(len(self.groups)):
            moments, dealt = batch.derive(sums_of, self.rows_of(group), self.folds, self.jackknife, self.null != "rows")
            if dealt is not None:
                sums = declared(self, group, Folds)
                if sums.total.shape[1:] != dealt.total.shape[1:]:
                    raise UserError(
                        f"{self.name}: images with {dealt.total.shape[1]} tokens after images with "
                        f"{sums.total.shape[1]}, whose positions cannot be compared. Feed images of one size, or use "
                        f"null=rows."
                    )
                sums.merge(dealt)
            declared(self, group, Moments).merge(moments)

    def before_sync(self) -> None:
        """A rank that saw no batch learns from the others how many tokens and channels there are."""
        for shapes in ranks.gather(self.shapes):
            self.declare(shapes)

    def declare(self, shapes: list[tuple[int, int]]) -> None:
        """Declare the sums of the groups, as soon as their shapes are known."""
        if self.shapes or not shapes:
            return
        self.shapes = shapes
        channels = [len(self.members(group)) * width for group, (_, width) in enumerate(shapes)]
        self.jackknife = affordable(self.name, self.folds, self.interval, sum(count**2 for count in channels))
        for group, ((tokens, _), count) in enumerate(zip(shapes, channels, strict=True)):
            declare(self, group, Moments.zeros(self.jackknife, count, self.device))
            if self.null != "rows":
                declare(self, group, Folds.zeros(self.folds, tokens, count, self.device))

    def parts(self, group: int) -> Seen:
        """Return the parts of a group, as all images, or all but a fold, show them."""
        return declared(self, group, Moments).parts(self.shapes[group][1])

    def finish(self) -> dict[str, Tensor]:
        self.check_rows()
        columns: dict[str, Tensor] = {}
        dead = torch.zeros(len(self.names), dtype=torch.bool)
        found = ranks.in_turn(self._of_group, len(self.groups))
        for group in reversed(range(len(found))):  # where groups overlap the first counts
            index = self.members(group)
            dead[index] |= ~found[group].pop("alive")
            for name, part in found[group].items():
                if name not in columns:
                    columns[name] = self._empty(name, part)
                place = (index[:, None], index, slice(part.shape[-1]))[: part.dim()] if part.dim() > 1 else (index,)
                columns[name][place] = part
        if dead.any():
            names = ", ".join(itertools.compress(self.names, dead.tolist()))
            rank_zero_warn(f"{self.name}: similarity 0 for {self.noun} whose output does not vary: {names}.", DeadHead)
        return {name: column.to(self.device) for name, column in columns.items()}

    def _of_group(self, group: int) -> dict[str, Tensor]:
        """The columns of one group, and which of its parts are alive; on the CPU, for other ranks."""
        seen = self.parts(group)
        heads = seen(None)
        compared = self.compare(heads)
        images_J = declared(self, group, Moments).rows
        found = {
            **jackknife(compared.pop("value"), lambda fold: self.compare(seen(fold))["value"], images_J, self.within),
            **compared,
            **self._null(group, heads),
            "rows": heads.rows.expand(len(heads.alive)),
        }
        both = heads.alive[:, None] & heads.alive
        for name in ("value", "null", "low", "high"):
            found[name] = found[name].where(both, 0.0)
            if name != "null":  # exact by definition, but not as computed
                found[name].diagonal().copy_(heads.alive)
        return {name: part.cpu() for name, part in {**found, "alive": heads.alive}.items()}

    def _null(self, group: int, heads: Parts) -> dict[str, Tensor]:
        """Return the chance columns of one group."""
        if self.null == "rows":
            return self.rows_null(heads)
        folds = declared(self, group, Folds)
        if int((folds.count > 0).sum()) < 2:  # nothing to swap
            return {name: part * torch.nan for name, part in _as_null(self.permuted(heads, heads)).items()}
        site = self.layout.sites[self.groups[group][0]]
        rolled = dataclasses.replace(site, prefix_tokens=site.prefix_tokens - self.skipped[group])
        swapped = folds.swapped(heads, self.null_draws, self.seed, rolled if self.null == "rolled" else None)
        drawn = [self.permuted(heads, each) for each in swapped]
        value_HHN = torch.stack([each["value"] for each in drawn], -1)
        means = {name: torch.stack([each[name] for each in drawn]).mean(0) for name in drawn[0]}
        spread = value_HHN.std(-1, correction=min(1, self.null_draws - 1))
        return {**_as_null(means), "null_sd": spread, "null_draws": value_HHN}

    def _empty(self, name: str, part: Tensor) -> Tensor:
        """Room for all parts of what ``part`` says about a group; NaN where no group says anything."""
        count, width = len(self.names), max(width for _, width in self.shapes)
        shape = (count, count, self.null_draws if name == "null_draws" else width)[: part.dim()]
        return part.new_full(shape, torch.nan) if part.is_floating_point() else part.new_zeros(shape)


class PairMeasure(Similarity):
    """Base of the similarities between heads. A subclass writes ``compare`` and ``rows_null`` for one group's heads.

    pairs: which heads are compared: those of one "layer", of one "stage", or "all". Rows are compared token by token,
        so the sites of a group need the same number of tokens.
    tokens: rows are "all" tokens, or the "patches" without class token and registers, which many heads treat alike.

    UserError where the heads of a group differ in tokens or width. DuplicateHead names pairs above 0.99999, where
    chance does not come near that.
    """

    kind = "pairwise"
    larger = "the two heads are more alike"
    equal_up_to: ClassVar[str]  # what the measure cannot see: heads that differ by no more than this are duplicates

    def __init__(self, layout: HeadLayout, pairs: Pairs = "layer", tokens: Tokens = "all", **kwargs: Any) -> None:
        super().__init__(layout, groups(self.name, layout, pairs), **kwargs)
        one_of(self.name, "tokens", tokens, Tokens)
        self.pairs = pairs
        if tokens == "patches":
            self.skipped = [layout.sites[sites[0]].prefix_tokens for sites in self.groups]
        for sites in self.groups:  # as far as the layout tells, refuse now and not after an epoch
            self._check_aligned(sites, [token_count(layout.sites[s]) for s in sites])

    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        sites = self.groups[group]
        tokens = [batch.z[s].shape[1] for s in sites]
        self._check_aligned(sites, tokens)
        return tokens[0] - self.skipped[group], self.layout.sites[sites[0]].head_dim

    def rows_of(self, group: int) -> Rows:
        return side_by_side, self.groups[group], self.skipped[group]

    def finish(self) -> dict[str, Tensor]:
        columns = super().finish()
        warn_duplicates(self.name, self.layout, columns["value"], columns["null"], self.equal_up_to)
        return columns

    def _check_aligned(self, sites: tuple[int, ...], tokens: Sequence[int | None]) -> None:
        """UserError unless the sites of a group, whose rows stand side by side, have equal tokens and head widths."""
        counted = zip(sites, tokens, strict=True)
        facts = [f"{count or '?'} tokens, width {self.layout.sites[s].head_dim}" for s, count in counted]
        refuse_unlike(self.name, self.pairs, [self.layout.sites[s] for s in sites], facts)


def groups(name: str, layout: HeadLayout, pairs: Pairs) -> tuple[tuple[int, ...], ...]:
    """Site numbers, grouped by what is compared with what. UserError for pairs that are none of the choices."""
    one_of(name, "pairs", pairs, Pairs)
    key = {"layer": lambda s: s, "stage": lambda s: layout.sites[s].stage, "all": lambda s: 0}[pairs]
    return tuple(tuple(sites) for _, sites in itertools.groupby(range(len(layout.sites)), key))


def refuse_unlike(name: str, pairs: Pairs, sites: Sequence[HeadSite], facts: Sequence[str]) -> None:
    """UserError unless the ``facts`` of sites whose heads are compared, in words, are the same."""
    for site, fact in zip(sites, facts, strict=True):
        if fact != facts[0]:
            raise UserError(
                f"{name}: pairs={pairs} compares {sites[0].name} ({facts[0]}) with {site.name} ({fact}), expected the "
                f"same. Compare fewer heads: pairs=stage or pairs=layer."
            )


def token_count(site: HeadSite) -> int | None:
    """T of a site, None where only the images tell."""
    return None if site.grid is None else site.prefix_tokens + math.prod(site.grid)


def side_by_side(batch: HeadBatch, sites: tuple[int, ...], skip: int = 0) -> Tensor:
    """(B, T - skip, C) outputs of the heads of ``sites``, without the first tokens."""
    parts = [batch.z[s][:, skip:].flatten(2) for s in sites]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _as_null(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"null" if name == "value" else f"null_{name}": part for name, part in columns.items()}


def warn_duplicates(name: str, layout: HeadLayout, value_AA: Tensor, null_AA: Tensor, up_to: str) -> None:
    """Name the pairs of heads that are equal ``up_to`` something; not where so few rows would make any pair equal."""
    if same := ((value_AA > _DUPLICATE) & (null_AA < 0.9)).triu(1).nonzero().tolist():
        names = head_names(layout)
        pairs = ", ".join(f"{names[a]} and {names[b]}" for a, b in same)
        rank_zero_warn(f"{name}: above {_DUPLICATE}, so equal up to {up_to}: {pairs}.", DuplicateHead)


def head_names(layout: HeadLayout) -> list[str]:
    return [f"{site.name} head {head}" for _, head, site in layout]


def flat_heads(layout: HeadLayout, sites: Sequence[int]) -> Tensor:
    """(H,) flat indices of the heads of some sites."""
    return torch.cat([torch.arange(layout.num_heads)[layout.span(s)] for s in sites])
