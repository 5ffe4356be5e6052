"""What all similarities between heads share: the pairs, their second moments, and what makes a number doubtful.

Rows are the tokens of all images, channels a head's output before its gate. Mean and covariance of a group's channels
are enough for CCA, SVCCA, PWCCA, linear CKA and Procrustes, so those of a batch are computed once for all of them.

Shapes: B images, T tokens, C channels of a group, H heads of a group, D head width, A heads of all sites,
R the largest head width.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe.errors import UserError, one_of
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.moments import Parts, SecondMoments

Pairs = Literal["layer", "stage", "all"]

_DUPLICATE = 0.99999


class DeadHead(MeasureWarning):
    """A head's output does not vary, so nothing is similar to it."""


class DuplicateHead(MeasureWarning):
    """Two heads do the same, as far as the measure can tell."""


class FewRows(MeasureWarning):
    """There are so few rows that unrelated heads seem similar."""


class PairMeasure(Measure):
    """Base of the similarities between heads. A subclass writes ``compare`` for the heads of one group.

    pairs: which heads are compared: those of one "layer", of one "stage", or "all". Rows are compared token by token,
        so the sites of a group need the same number of tokens.

    Columns of all of them: value (A, A), larger is more alike, 1 for a head with itself, 0 for a dead head; read it
    against null (A, A): the same for independent rows; rows (A,) rows of the head's group. NaN outside the groups.

    UserError with fewer rows than channels of a head; FewRows warns below ten times that. DeadHead and DuplicateHead
    (above 0.99999, where chance does not come near that) name heads.
    """

    kind = "pairwise"
    equal_up_to: ClassVar[str]  # what the measure cannot see: heads that differ by no more than this are duplicates

    def __init__(self, layout: HeadLayout, pairs: Pairs = "layer", **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self.pairs = pairs
        self.groups = groups(self.name, layout, pairs)
        for number, sites in enumerate(self.groups):
            # as far as the layout tells, refuse now and not after an epoch
            self._check_aligned(sites, [token_count(layout.sites[s]) for s in sites])
            zeros = SecondMoments.zeros(sum(layout.sites[s].channels for s in sites))
            self.add_state(f"rows_{number}", zeros.rows)
            self.add_state(f"total_{number}", zeros.total)
            self.add_state(f"outer_{number}", zeros.outer)

    @abstractmethod
    def compare(self, group: int, heads: Parts) -> dict[str, Tensor]:
        """Columns of one group, "value" first and "null" among them: (H,), (H, H), or (H, H, D).

        The values of dead heads and of a head with itself may be anything: they are known without computing.
        """

    def update(self, batch: HeadBatch) -> None:
        if not batch.valid.any():
            return
        for number, sites in enumerate(self.groups):
            self._check_aligned(sites, [batch.z[s].shape[1] for s in sites])
            self.moments(number).merge(batch.derive(_moments, sites))
        self.images += batch.valid.sum()

    def moments(self, group: int) -> SecondMoments:
        return SecondMoments(*(getattr(self, f"{name}_{group}") for name in ("rows", "total", "outer")))

    def finish(self) -> dict[str, Tensor]:
        self._check_rows()
        columns: dict[str, Tensor] = {}
        alive = torch.zeros(self.layout.num_heads, dtype=torch.bool, device=self.device)
        for number, sites in enumerate(self.groups):
            flat = torch.cat([torch.arange(self.layout.num_heads)[self.layout.span(s)] for s in sites]).to(self.device)
            heads = Parts.of(self.moments(number), self.layout.sites[sites[0]].head_dim)
            alive[flat] = heads.alive
            found = {**self.compare(number, heads), "rows": heads.rows.expand(len(flat))}
            for name in ("value", "null"):
                found[name] = found[name].where(heads.alive[:, None] & heads.alive, 0.0)
            # exact by definition, but not as computed
            found["value"].diagonal().copy_(heads.alive)
            for name, part in found.items():
                if name not in columns:
                    columns[name] = self._empty(part)
                place = (flat[:, None], flat) if part.dim() > 1 else (flat,)
                if part.dim() == 3:
                    place = (*place, slice(part.shape[2]))
                columns[name][place] = part
        warn_dead(self.name, "heads", [head_name(self.layout, a) for a in (~alive).nonzero().flatten().tolist()])
        warn_duplicates(self.name, self.layout, columns["value"], columns["null"], self.equal_up_to)
        return columns

    def _empty(self, part: Tensor) -> Tensor:
        """Room for all heads of what ``part`` says about a group; NaN where no group says anything."""
        heads, width = self.layout.num_heads, max(site.head_dim for site in self.layout.sites)
        shape = (heads, heads, width)[: part.dim()]
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
        rows = [int(self.moments(number).rows) for number in range(len(self.groups))]
        sites = [self.layout.sites[group[0]] for group in self.groups]
        count, site = min(zip(rows, sites, strict=True), key=lambda pair: pair[0] / pair[1].head_dim)
        check_rows(self.name, site.name, count, site.head_dim)


def groups(name: str, layout: HeadLayout, pairs: Pairs) -> tuple[tuple[int, ...], ...]:
    """Site numbers, grouped by what is compared with what."""
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


def rows_of(batch: HeadBatch, sites: tuple[int, ...]) -> Tensor:
    """(N, C) outputs of the heads of ``sites`` side by side, one row per token of a valid image."""
    return torch.cat([batch.z[s][batch.valid].flatten(2) for s in sites], -1).flatten(0, 1)


def _moments(batch: HeadBatch, sites: tuple[int, ...]) -> SecondMoments:
    return SecondMoments.of(rows_of(batch, sites))


def check_rows(name: str, where: str, rows: int, width: int) -> None:
    """Refuse fewer rows than channels, warn below ten times as many."""
    if rows < width:
        raise UserError(
            f"{name}: {where} has n = {rows} rows (tokens of all images) for d = {width} channels, expected at least "
            f"n = d, better 10 d. Use more images."
        )
    if rows < 10 * width:
        rank_zero_warn(
            f"{name}: {where} has only n = {rows} rows for d = {width} channels (n < 10 d): what is unrelated reaches "
            f"the level in column null. Use more images.",
            FewRows,
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
