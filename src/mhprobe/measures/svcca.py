"""Do two heads compute the same thing up to a linear map? Canonical correlation of their principal directions.

Raghu, Gilmer, Yosinski & Sohl-Dickstein, 2017, arXiv 1706.05806. Rows are the tokens of all images, channels a head's
output before its gate. Centre; keep per head the principal directions that explain 99 % of the variance; whiten; the
singular values of the whitened cross-covariance are the canonical correlations rho. The authors' code (google/svcca)
needs the rows themselves and works pair by pair; second moments suffice, and serve all pairs of a group at once.

Shapes: B images, T tokens, C channels of a group, H heads of a group, D head width, A heads of all sites,
R the largest head width, P pairs.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.chance import chance_level
from mhprobe.measures.moments import SecondMoments

Pairs = Literal["layer", "stage", "all"]

# a direction with less than this share of the head's mean square is rounding noise of the float64 sums
_RESOLUTION = 1e-12


class DeadHead(MeasureWarning):
    """A head's output does not vary, so nothing correlates with it."""


class FewRows(MeasureWarning):
    """There are so few rows that unrelated heads seem similar."""


class SVCCA(Measure):
    """Mean canonical correlation between heads, with the level that chance alone would reach.

    pairs: which heads are compared: those of one "layer", of one "stage", or "all". Rows are compared token by token,
        so the sites of a group need the same number of tokens.
    variance: share of each head's variance that the kept directions explain.
    null_draws, seed: samples behind the chance level, and what they are drawn from.

    Columns: value (A, A) in [0, 1]: sum(rho) / min(kept dims), 1 for a head with itself, 0 for a dead head; read it
    against null (A, A): the same for independent rows; dims (A,) kept directions; rows (A,) rows of the head's group;
    rho (A, A, R) the correlations in falling order. NaN outside the groups, and behind the last rho.

    UserError with fewer rows than channels of a head; FewRows warns below ten times that.
    """

    kind = "pairwise"
    label = "SVCCA: mean canonical correlation"

    def __init__(
        self,
        layout: HeadLayout,
        pairs: Pairs = "layer",
        variance: float = 0.99,
        null_draws: int = 20,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if pairs not in get_args(Pairs):
            raise UserError(f"svcca: pairs is one of {', '.join(get_args(Pairs))}, got {pairs!r}.")
        if not 0 < variance <= 1:
            raise UserError(f"svcca: variance is a share above 0 and at most 1, got {variance}.")
        if null_draws < 1:
            raise UserError(f"svcca: null_draws is at least 1, got {null_draws}.")
        self.pairs = pairs
        self.variance = variance
        self.null_draws = null_draws
        self.seed = seed
        self.groups = _groups(layout, pairs)
        for number, sites in enumerate(self.groups):
            # as far as the layout tells, refuse now and not after an epoch
            windows = [layout.sites[s].windows for s in sites]
            self._check_aligned(sites, [None if w is None else w.grid[0] * w.grid[1] for w in windows])
            zeros = SecondMoments.zeros(sum(layout.sites[s].channels for s in sites))
            self.add_state(f"rows_{number}", zeros.rows)
            self.add_state(f"total_{number}", zeros.total)
            self.add_state(f"outer_{number}", zeros.outer)

    def update(self, batch: HeadBatch) -> None:
        for number, sites in enumerate(self.groups):
            self._check_aligned(sites, [batch.z[s].shape[1] for s in sites])
            x_BTC = torch.cat([batch.z[s][batch.valid].flatten(2) for s in sites], -1)
            self._moments(number).add(x_BTC.flatten(0, 1))
        self.images += batch.valid.sum()

    def finish(self) -> dict[str, Tensor]:
        self._check_rows()
        count, width = self.layout.num_heads, max(site.head_dim for site in self.layout.sites)
        rho = self.images.new_full((count, count, width), torch.nan, dtype=torch.float64)
        dims = self.images.new_zeros(count)
        rows = self.images.new_zeros(count)
        inside = torch.zeros(count, count, dtype=torch.bool, device=self.device)
        for number, sites in enumerate(self.groups):
            heads = torch.cat([torch.arange(count)[self.layout.span(s)] for s in sites]).to(self.device)
            moments = self._moments(number)
            rho_HHR, dims[heads] = self._correlations(moments, self.layout.sites[sites[0]].head_dim)
            rho[heads[:, None], heads, : rho_HHR.shape[-1]] = rho_HHR
            rows[heads] = moments.rows
            inside[heads[:, None], heads] = True
        self._warn_dead(dims)

        kept = torch.minimum(dims[:, None], dims)
        value = (rho.nansum(-1) / kept.clamp(min=1)).masked_fill(~inside, torch.nan)
        # the identity is exact, its computed singular values are not
        value.diagonal().copy_((dims > 0).double())
        return {"value": value, "null": self._null(inside, dims, rows), "dims": dims, "rows": rows, "rho": rho}

    def _moments(self, group: int) -> SecondMoments:
        return SecondMoments(*(getattr(self, f"{name}_{group}") for name in ("rows", "total", "outer")))

    def _correlations(self, moments: SecondMoments, width: int) -> tuple[Tensor, Tensor]:
        """rho (H, H, D) between all heads of a group, NaN behind the last one, and dims (H,)."""
        heads = len(moments.total) // width
        covariance_HDHD = moments.covariance.view(heads, width, heads, width)
        energy_H = moments.mean_square.view(heads, width).sum(1)
        own = torch.arange(heads, device=energy_H.device)
        eigenvalue_HD, direction_HDD = torch.linalg.eigh(covariance_HDHD[own, :, own])
        eigenvalue_HD, direction_HDD = eigenvalue_HD.flip(1), direction_HDD.flip(2)

        spectrum_HD = eigenvalue_HD.clamp(min=0)
        before_HD = spectrum_HD.cumsum(1) - spectrum_HD  # a direction is kept as long as those before it do not suffice
        kept_HD = (before_HD < self.variance * spectrum_HD.sum(1, keepdim=True)) & (
            eigenvalue_HD > _RESOLUTION * energy_H[:, None]
        )
        # directions that are not kept become zero columns, which add zero singular values: all pairs fit one batch
        scale_HD = torch.where(kept_HD, eigenvalue_HD, torch.inf).rsqrt()
        whiten_HDD = direction_HDD * scale_HD[:, None]
        dims_H = kept_HD.sum(1)

        a, b = torch.triu_indices(heads, heads, device=dims_H.device)
        cross_PDD = whiten_HDD[a].mT @ covariance_HDHD[a, :, b] @ whiten_HDD[b]
        rho_PD = torch.linalg.svdvals(cross_PDD).clamp(0, 1)
        behind_PD = torch.arange(width, device=dims_H.device) >= torch.minimum(dims_H[a], dims_H[b])[:, None]
        rho_HHD = rho_PD.new_empty(heads, heads, width)
        rho_HHD[a, b] = rho_HHD[b, a] = rho_PD.masked_fill(behind_PD, torch.nan)
        return rho_HHD, dims_H

    def _null(self, inside_AA: Tensor, dims_A: Tensor, rows_A: Tensor) -> Tensor:
        """(A, A) chance level of every pair in scope; 0 where a head is dead."""
        null = torch.full_like(inside_AA, torch.nan, dtype=torch.float64, device="cpu")
        dims, rows = dims_A.tolist(), rows_A.tolist()
        for a, b in inside_AA.nonzero().tolist():
            alive = dims[a] > 0 and dims[b] > 0
            null[a, b] = chance_level(rows[a], dims[a], dims[b], self.null_draws, self.seed) if alive else 0.0
        return null.to(inside_AA.device)

    def _check_aligned(self, sites: tuple[int, ...], tokens: list[int | None]) -> None:
        """Rows of a group are tokens side by side: all its sites need equally many, and heads of one width."""
        first = self.layout.sites[sites[0]]
        for s, count in zip(sites, tokens, strict=True):
            site = self.layout.sites[s]
            if count != tokens[0] or site.head_dim != first.head_dim:
                raise UserError(
                    f"svcca: pairs={self.pairs} compares {first.name} ({tokens[0]} tokens, width {first.head_dim}) "
                    f"with {site.name} ({count} tokens, width {site.head_dim}), expected equal tokens and head widths. "
                    f"Compare fewer heads: pairs=stage or pairs=layer."
                )

    def _check_rows(self) -> None:
        """Judge the group that has the fewest rows for its heads' width."""

        def rows_and_site(group: int) -> tuple[int, HeadSite]:
            return int(self._moments(group).rows), self.layout.sites[self.groups[group][0]]

        rows, site = min(map(rows_and_site, range(len(self.groups))), key=lambda pair: pair[0] / pair[1].head_dim)
        if rows < site.head_dim:
            raise UserError(
                f"svcca: {site.name} has n = {rows} rows (tokens of all images) for heads with d = {site.head_dim} "
                f"channels, expected at least n = d, better 10 d. Use more images."
            )
        if rows < 10 * site.head_dim:
            rank_zero_warn(
                f"svcca: {site.name} has only n = {rows} rows for d = {site.head_dim} channels (n < 10 d): unrelated "
                f"heads reach the level in column null. Use more images.",
                FewRows,
            )

    def _warn_dead(self, dims_A: Tensor) -> None:
        dead = [
            f"{site.name} head {head}" for (_, head, site), m in zip(self.layout, dims_A.tolist(), strict=True) if not m
        ]
        if dead:
            rank_zero_warn(f"svcca: similarity 0 for heads whose output does not vary: {', '.join(dead)}.", DeadHead)


def _groups(layout: HeadLayout, pairs: Pairs) -> tuple[tuple[int, ...], ...]:
    """Site numbers, grouped by what is compared with what."""
    key = {
        "layer": lambda s: s,
        "stage": lambda s: layout.sites[s].stage,
        "all": lambda s: 0,
    }[pairs]
    return tuple(tuple(sites) for _, sites in itertools.groupby(range(len(layout.sites)), key))
