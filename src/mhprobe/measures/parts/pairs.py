"""Similarities between heads, layers or blocks: pairs, second moments, and warnings of doubtful numbers.

A row is a token of an image, a channel is e.g. one of a head's outputs before its gate. Two kinds
of sums suffice: mean and covariance of a group's channels, and sums per fold of images for the null
(folds.py). All similarities share them.
Shapes: C channels of a group, H parts of a group (heads, layers or blocks), D their width, A parts
of all groups, R the largest width, N draws of the null.
"""

import dataclasses
import itertools
import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe import ranks
from mhprobe.errors import Positive, UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.parts.folds import (
    Folds,
    Null,
    Rows,
    declare,
    declared,
    folds_of_null,
    sums_of,
)
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
    """Base of the similarities between parts of a network.

    A subclass says what the parts are and compares them.

    null: what counts as unrelated. "images": the same two parts on different images, position by
    position. "rolled":
        also rolls one part's grid by a random offset; images - rolled is what position shares.
    null_draws, seed: number of draws of the null, and their seed.
    folds: number of folds of images that the null keeps sums of (folds.py); memory grows with it.
        None: 64, or as many fewer, at least 8, as keep its sums within a gigabyte; FewFolds warns.
    interval: whether to keep sums by eight folds for low and high (jackknife.py), which takes eight
        times the memory. None: if that is at most two gigabytes; NoInterval warns if it is more.
    groups: site numbers that are compared with each other, row by row.

    Columns: value (A, A), larger is more alike, 1 for a part with itself, 0 for a dead one; low,
    high (A, A) 95 % interval over image sets of this size, NaN with images in fewer than five
    folds; null (A, A) mean over draws, to read the value against, NaN if all images are in one
    fold; null_sd (A, A) their standard deviation; null_draws (A, A, N) the draws; images (); rows
    (A,) of the part's group. NaN outside the groups. Raises UserError with fewer rows than channels
    of a part. FewImages warns with fewer images than channels, DeadHead names parts that do not
    vary.
    """

    within = SHARE
    noun: ClassVar[str] = "heads"  # of the parts, for messages

    def __init__(
        self,
        layout: HeadLayout,
        groups: Sequence[tuple[int, ...]],
        null: Null = "images",
        null_draws: Positive = 10,
        seed: int = 0,
        folds: Annotated[int, 2] | None = None,
        interval: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if null != "images":
            self.label = f"{self.label}; null={null}"
        self.null, self.null_draws, self.seed, self.folds, self.interval = (
            null,
            null_draws,
            seed,
            folds,
            interval,
        )
        self.groups = groups
        self.skipped = [0] * len(groups)  # tokens in front that are left out, by group
        self.shapes: list[
            tuple[int, int]
        ] = []  # tokens of an image and D, by group, once a batch tells
        for site in (layout.sites[sites[0]] for sites in groups):
            if null == "rolled" and site.grid is None:
                raise UserError(
                    f"{self.name}: null=rolled rolls the grid of {site.name}, which is not fixed: "
                    "the model takes "
                    f"images of any size. Use null=images."
                )

    @property
    def names(self) -> list[str]:
        """(A,) names of the parts."""
        return (
            head_names(self.layout)
            if self.kind == "pairwise"
            else [site.name for site in self.layout.sites]
        )

    def members(self, group: int) -> Tensor:
        """(H,) numbers of a group's parts among all."""
        sites = self.groups[group]
        return flat_heads(self.layout, sites) if self.kind == "pairwise" else torch.tensor(sites)

    @abstractmethod
    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        """Rows of an image, and D. UserError if the parts of a group differ in their tokens."""

    @abstractmethod
    def rows_of(self, group: int) -> Rows:
        """Function of a batch that returns (B, T, C) rows, and its further arguments."""

    @abstractmethod
    def compare(self, heads: Parts) -> dict[str, Tensor]:
        """Columns of one group, "value" first: (H,), (H, H), or (H, H, D); dead parts are replaced later."""

    def permuted(self, heads: Parts, deranged: Parts) -> dict[str, Tensor]:
        """Columns that have a null, from ``deranged``: the same parts with covariances of swapped images."""
        return {
            name: part for name, part in self.compare(deranged).items() if name in ("value", "rho")
        }

    def check_rows(self) -> None:
        """Refuse a group with fewer rows than channels; warn of fewer images, as tokens of an image are alike."""
        rows = [
            int(declared(self, number, Moments).rows.sum()) for number in range(len(self.groups))
        ]
        widths = [width for _, width in self.shapes]
        sites = [self.layout.sites[group[0]] for group in self.groups]
        count, width, site = min(
            zip(rows, widths, sites, strict=True), key=lambda item: item[0] / item[1]
        )
        if count < width:
            raise UserError(
                f"{self.name}: {site.name} has n = {count} rows (tokens of all images) for d = "
                f"{width} channels, "
                f"expected at least n = d, better 10 d. Use more images."
            )
        if (images := int(self.images)) < max(widths):
            level = "what is unrelated reaches the level in column null"
            if images == 1:
                level = "column null is empty, since it compares different images"
            few = f"only {images} {'image' if images == 1 else 'images'} for {max(widths)} channels"
            rank_zero_warn(f"{self.name}: {few}: {level}. Use more images.", FewImages)

    def update(self, batch: HeadBatch) -> None:
        self.declare([self.shape(group, batch) for group in range(len(self.groups))])
        super().update(batch)

    def add(self, batch: HeadBatch) -> None:
        for group in range(len(self.groups)):
            moments, dealt = batch.derive(
                sums_of, self.rows_of(group), self.null_folds, self.jackknife
            )
            sums = declared(self, group, Folds)
            was, now = (
                f"{of.shape[1]} tokens of {of.shape[2]} channels"
                for of in (sums.total, dealt.total)
            )
            if was != now:
                raise UserError(
                    f"{self.name}: images with {now} after images with {was}, which cannot be "
                    "compared. Feed images of "
                    f"one size, recorded of one network."
                )
            sums.merge(dealt)
            declared(self, group, Moments).merge(moments)

    def before_sync(self) -> None:
        """Declare the sums of a rank that saw no batch, with the shapes of the other ranks."""
        for shapes in ranks.gather(self.shapes):
            self.declare(shapes)

    def declare(self, shapes: list[tuple[int, int]]) -> None:
        """Declare the sums of the groups, once their shapes are known."""
        if self.shapes or not shapes:
            return
        self.shapes = shapes
        self.null_folds, self.jackknife = self._number_of_folds(shapes)
        for group, (tokens, count) in enumerate(self._tokens_and_channels(shapes)):
            declare(self, group, Moments.zeros(self.jackknife, count, self.device))
            declare(self, group, Folds.zeros(self.null_folds, tokens, count, self.device))

    def _number_of_folds(self, shapes: list[tuple[int, int]]) -> tuple[int, int]:
        """Folds of the null, and of the interval."""
        sizes = self._tokens_and_channels(shapes)
        of_fold = sum(tokens * count for tokens, count in sizes)
        null = folds_of_null(self.name, of_fold) if self.folds is None else self.folds
        return null, affordable(self.name, null, self.interval, sum(c**2 for _, c in sizes))

    def _tokens_and_channels(self, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """(T, C) of each group."""
        return [
            (tokens, len(self.members(group)) * width)
            for group, (tokens, width) in enumerate(shapes)
        ]

    def parts(self, group: int) -> Seen:
        """Function from a fold to the parts of a group without that fold's images; None: with all images."""
        return declared(self, group, Moments).parts(self.shapes[group][1])

    def finish(self) -> dict[str, Tensor]:
        self.check_rows()
        columns: dict[str, Tensor] = {}
        count = len(self.names)
        width = max(width for _, width in self.shapes)
        dead = torch.zeros(count, dtype=torch.bool)
        by_group = ranks.in_turn(self._of_group, len(self.groups))
        for group in reversed(range(len(by_group))):  # where groups overlap the first counts
            index = self.members(group)
            dead[index] |= ~by_group[group].pop("alive")
            for name, part in by_group[group].items():
                if name not in columns:  # NaN until groups fill it
                    shape = (count, count, self.null_draws if name == "null_draws" else width)[
                        : part.dim()
                    ]
                    columns[name] = part.new_full(
                        shape, torch.nan if part.is_floating_point() else 0
                    )
                place = (
                    (index[:, None], index, slice(part.shape[-1]))[: part.dim()]
                    if part.dim() > 1
                    else (index,)
                )
                columns[name][place] = part
        if dead.any():
            names = ", ".join(itertools.compress(self.names, dead.tolist()))
            rank_zero_warn(
                f"{self.name}: similarity 0 for {self.noun} whose output does not vary: {names}.",
                DeadHead,
            )
        return {name: column.to(self.device) for name, column in columns.items()}

    def _of_group(self, group: int) -> dict[str, Tensor]:
        """Columns of one group, and "alive" of its parts; on the CPU, for other ranks."""
        seen = self.parts(group)
        heads = seen(None)
        compared = self.compare(heads)
        images_J = declared(self, group, Moments).rows
        columns = {
            **jackknife(
                compared.pop("value"),
                lambda fold: self.compare(seen(fold))["value"],
                images_J,
                self.within,
            ),
            **compared,
            **self._null(group, heads),
            "rows": heads.rows.expand(len(heads.alive)),
        }
        both = heads.alive[:, None] & heads.alive
        for name in ("value", "null", "low", "high"):
            columns[name] = columns[name].where(both, 0.0)
            if name != "null":  # exact by definition, but not as computed
                columns[name].diagonal().copy_(heads.alive)
        return {name: part.cpu() for name, part in {**columns, "alive": heads.alive}.items()}

    def _null(self, group: int, heads: Parts) -> dict[str, Tensor]:
        folds = declared(self, group, Folds)
        if int((folds.count > 0).sum()) < 2:  # nothing to swap
            return {
                name: part * torch.nan
                for name, part in _as_null(self.permuted(heads, heads)).items()
            }
        site = self.layout.sites[self.groups[group][0]]
        rolled = dataclasses.replace(site, prefix_tokens=site.prefix_tokens - self.skipped[group])
        swapped = folds.swapped(
            heads, self.null_draws, self.seed, rolled if self.null == "rolled" else None
        )
        draws = [self.permuted(heads, parts) for parts in swapped]
        value_HHN = torch.stack([draw["value"] for draw in draws], -1)
        means = {name: torch.stack([draw[name] for draw in draws]).mean(0) for name in draws[0]}
        spread = value_HHN.std(-1, correction=min(1, self.null_draws - 1))
        return {**_as_null(means), "null_sd": spread, "null_draws": value_HHN}


class PairMeasure(Similarity):
    """Base of the similarities between heads. A subclass writes ``compare`` for one group's heads.

    pairs: heads that are compared: those of one "layer", of one "stage", or "all", token by token.
    tokens: rows are "all" tokens, or the "patches" without class token and registers, which many
    heads treat alike. Raises UserError if the heads of a group differ in tokens or width.
    DuplicateHead names pairs above 0.99999 whose null is below 0.9.
    """

    kind = "pairwise"
    larger = "the two heads are more alike"
    equal_up_to: ClassVar[str]  # difference that the measure cannot see, between heads that score 1

    def __init__(
        self, layout: HeadLayout, pairs: Pairs = "layer", tokens: Tokens = "all", **kwargs: Any
    ) -> None:
        super().__init__(layout, groups_of_sites(self.name, layout, pairs), **kwargs)
        self.pairs = pairs
        if tokens == "patches":
            self.skipped = [layout.sites[sites[0]].prefix_tokens for sites in self.groups]
        for sites in self.groups:  # refuse before the first batch what the layout alone shows
            self._check_aligned(sites, [token_count(layout.sites[s]) for s in sites])

    @property
    def bytes_kept(self) -> int:
        if self.shapes:
            return super().bytes_kept
        shapes = []
        for sites, skipped in zip(self.groups, self.skipped, strict=True):
            site = self.layout.sites[sites[0]]
            tokens = token_count(site)
            if tokens is None:
                return super().bytes_kept
            shapes.append((tokens - skipped, site.head_dim))
        with warnings.catch_warnings(action="ignore"):  # said once, when the sums are made
            null, interval = self._number_of_folds(shapes)
        numbers = [
            null * tokens * count + interval * count**2
            for tokens, count in self._tokens_and_channels(shapes)
        ]
        return super().bytes_kept + 8 * sum(numbers)

    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        sites = self.groups[group]
        tokens = [batch.z[s].shape[1] for s in sites]
        self._check_aligned(sites, tokens)
        return tokens[0] - self.skipped[group], self.layout.sites[sites[0]].head_dim

    def rows_of(self, group: int) -> Rows:
        return outputs_side_by_side, self.groups[group], self.skipped[group]

    def finish(self) -> dict[str, Tensor]:
        columns = super().finish()
        warn_duplicates(self.name, self.layout, columns["value"], columns["null"], self.equal_up_to)
        return columns

    def _check_aligned(self, sites: tuple[int, ...], tokens: Sequence[int | None]) -> None:
        """UserError unless the sites of a group, whose rows stand side by side, have equal tokens and head widths."""
        counted = zip(sites, tokens, strict=True)
        facts = [
            f"{count or '?'} tokens, width {self.layout.sites[s].head_dim}" for s, count in counted
        ]
        refuse_unlike_sites(self.name, self.pairs, [self.layout.sites[s] for s in sites], facts)


def groups_of_sites(name: str, layout: HeadLayout, pairs: Pairs) -> tuple[tuple[int, ...], ...]:
    """Site numbers, by groups that are compared. Raises UserError for an unknown ``pairs``."""
    key = {"layer": lambda s: s, "stage": lambda s: layout.sites[s].stage, "all": lambda s: 0}[
        pairs
    ]
    return tuple(tuple(sites) for _, sites in itertools.groupby(range(len(layout.sites)), key))


def refuse_unlike_sites(
    name: str, pairs: Pairs, sites: Sequence[HeadSite], facts: Sequence[str]
) -> None:
    """Raise UserError unless the ``facts`` (a few words per site) of compared sites are equal."""
    for site, fact in zip(sites, facts, strict=True):
        if fact != facts[0]:
            raise UserError(
                f"{name}: pairs={pairs} compares {sites[0].name} ({facts[0]}) with {site.name} "
                f"({fact}), expected the "
                f"same. Compare fewer heads: pairs=stage or pairs=layer."
            )


def token_count(site: HeadSite) -> int | None:
    """T of a site, None if it depends on the size of the images."""
    return None if site.grid is None else site.prefix_tokens + math.prod(site.grid)


def outputs_side_by_side(batch: HeadBatch, sites: tuple[int, ...], skip: int = 0) -> Tensor:
    """(B, T - skip, C) outputs of the heads of ``sites``, without the first tokens."""
    parts = [batch.z[s][:, skip:].flatten(2) for s in sites]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _as_null(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"null" if name == "value" else f"null_{name}": part for name, part in columns.items()}


def warn_duplicates(
    name: str, layout: HeadLayout, value_AA: Tensor, null_AA: Tensor, up_to: str
) -> None:
    """Warn of pairs of heads that are equal ``up_to`` something. Pairs that few rows make equal are left out."""
    if same := ((value_AA > _DUPLICATE) & (null_AA < 0.9)).triu(1).nonzero().tolist():
        names = head_names(layout)
        pairs = ", ".join(f"{names[a]} and {names[b]}" for a, b in same)
        rank_zero_warn(
            f"{name}: above {_DUPLICATE}, so equal up to {up_to}: {pairs}.", DuplicateHead
        )


def head_names(layout: HeadLayout) -> list[str]:
    return [f"{site.name} head {head}" for _, head, site in layout]


def flat_heads(layout: HeadLayout, sites: Sequence[int]) -> Tensor:
    """(H,) flat indices of the heads of some sites."""
    return torch.cat([torch.arange(layout.num_heads)[layout.span(s)] for s in sites])
