"""Canonical correlations between the residual streams behind two blocks, direction by direction.

Raghu et al., 2017, arXiv 1706.05806, between layers; Byun & Kim, "What does the multi-head do?", draw the correlations
against their index, for blocks of a stage and for the last blocks of stages. Rows are the patches of all images; prefix
tokens are left out. The last blocks of a Swin's stages have other grids: there the finer maps are averaged over the
cells of the coarsest grid, so that every row has a partner at its place.

Shapes: B images, C channels of the stream, L blocks, G blocks of a group, R correlations.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import Measure
from mhprobe.measures.layer_similarity import of_parts
from mhprobe.measures.parts import canonical
from mhprobe.measures.parts.folds import Folds, declare, declared, sums_of
from mhprobe.measures.parts.jackknife import affordable
from mhprobe.measures.parts.moments import Moments, Parts
from mhprobe.measures.parts.pairs import check_images, check_null, check_rows, warn_dead
from mhprobe.stats.intervals import SHARE


class BlockCCA(Measure):
    """Mean canonical correlation (SVCCA) between the residual streams behind two blocks.

    Compared are the blocks of each stage, and the last blocks of all stages.
    variance: share of a stream's variance that the kept directions explain. null_draws, seed, folds: of the chance
        level, and interval, as in LayerSimilarity.

    Columns: value (S, S) over sites in [0, 1], larger is more alike, 1 for a block with itself, NaN for pairs that are
    not compared; low, high (S, S): 95 % interval of what as many images give on average; null (S, S): the same two
    blocks on each other's images; rows (S,), of the comparisons inside the stage; images (). For the figure, (S, S, R):
    rho, the correlations in falling order, and null_rho; NaN behind the last.

    UserError with fewer rows than a stream has channels; FewImages warns with fewer images than that.
    """

    fooled_by = (
        "by definition: blocks that add nothing alike: the residual stream carries what was there before through both"
    )
    needs = frozenset({"stream"})
    kind = "pairwise_layers"
    within = SHARE
    label = "SVCCA of blocks: mean canonical correlation"
    larger = "the two blocks share more"
    also = ("block_coefficients",)

    def __init__(
        self,
        layout: HeadLayout,
        variance: float = 0.99,
        null_draws: int = 10,
        seed: int = 0,
        folds: int = 8,
        interval: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if not 0 < variance <= 1:
            raise UserError(f"block_cca: variance is a share above 0 and at most 1, got {variance}.")
        check_null(self.name, "images", null_draws, folds)
        self.interval = interval
        self.variance, self.null_draws, self.seed, self.folds = variance, null_draws, seed, folds
        self.groups = _groups(layout)
        self.widths: list[int] = []

    def update(self, batch: HeadBatch) -> None:
        streams = batch.need("stream", self.name)
        if not self.widths:  # a layout does not know how wide the stream is; every rank learns it from its first batch
            self._declare([streams[site.block].after.shape[2] for site in self.layout.sites])
        if not batch.valid.any():
            return
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            of = [self.layout.sites[s] for s in sites]
            maps_BTC = torch.cat([_rows(streams[s.block].after, s, _coarsest(of), width) for s in of], -1)
            moments, sums = sums_of(batch, maps_BTC, self.folds, self.jackknife)
            declared(self, number, Moments).merge(moments)
            declared(self, number, Folds).merge(sums)
        self.images += batch.valid.sum()

    def finish(self) -> dict[str, Tensor]:
        count, width = len(self.layout.sites), max(self.widths)
        value = torch.full((count, count), torch.nan, dtype=torch.float64, device=self.device)
        columns = {"value": value, **{name: value.clone() for name in ("low", "high", "null")}}
        columns["rows"] = self.images.new_zeros(count)
        columns |= {name: value.new_full((count, count, width), torch.nan) for name in ("rho", "null_rho")}
        dead: set[str] = set()
        # the last blocks of stages first, so that rows are those of the comparisons inside a stage
        for number, sites in reversed(list(enumerate(self.groups))):
            dead |= self._fill(columns, number, sites)
        warn_dead(self.name, "blocks", sorted(dead))
        return columns

    def _fill(self, columns: dict[str, Tensor], group: int, sites: tuple[int, ...]) -> set[str]:
        """One group's values into their places. Returns the blocks whose stream does not vary."""
        moments, width = declared(self, group, Moments), self.widths[group]
        check_rows(self.name, self.layout.sites[sites[0]].name, int(moments.rows.sum()), width)
        check_images(self.name, int(self.images), width)
        seen = moments.parts(width)
        blocks = seen(None)
        rho = self._correlations(blocks)
        null_rho = self._chance(group, blocks)
        index = torch.tensor(sites, device=self.device)
        both = blocks.alive[:, None] & blocks.alive
        of_pairs = of_parts(moments, seen, lambda parts: canonical.mean(self._correlations(parts)))
        for name, found in {**of_pairs, "null": canonical.mean(null_rho)}.items():
            columns[name][index[:, None], index] = found.where(both, 0.0)
        if not declared(self, group, Folds).deranged:
            columns["null"][index[:, None], index] = torch.nan
        for name, found in (("rho", rho), ("null_rho", null_rho)):
            columns[name][index[:, None], index, :width] = found
        for name in of_pairs:
            columns[name][index, index] = 1.0
        columns["rows"][index] = blocks.rows
        return {self.layout.sites[s].name for s, on in zip(sites, blocks.alive.tolist(), strict=True) if not on}

    def _correlations(self, blocks: Parts) -> Tensor:
        """(G, G, C) in falling order, NaN behind the last."""
        return canonical.correlations(blocks, canonical.leading(blocks, self.variance))

    def _chance(self, group: int, blocks: Parts) -> Tensor:
        """(G, G, C) the same of two blocks on each other's images, mean over draws; NaN without two folds."""
        folds = declared(self, group, Folds)
        if not folds.deranged:
            return blocks.spectrum.new_full((len(blocks.alive), *blocks.spectrum.shape), torch.nan)
        swapped = folds.swapped(blocks, self.null_draws, self.seed)
        return torch.stack([self._correlations(each) for each in swapped]).mean(0)

    def _declare(self, channels: list[int]) -> None:
        """Sums for streams so wide, per site."""
        self.widths = [max(channels[s] for s in sites) for sites in self.groups]
        wide = [len(sites) * width for sites, width in zip(self.groups, self.widths, strict=True)]
        self.jackknife = affordable(self.name, self.folds, self.interval, sum(count**2 for count in wide))
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            height, across = _coarsest([self.layout.sites[s] for s in sites])
            declare(self, number, Moments.zeros(self.jackknife, len(sites) * width, self.device))
            declare(self, number, Folds.zeros(self.folds, height * across, len(sites) * width, self.device))


def _groups(layout: HeadLayout) -> list[tuple[int, ...]]:
    """The sites of each stage, one per block, and where there are several stages the last one of each."""
    first = {site.block: number for number, site in reversed(list(enumerate(layout.sites)))}
    stages: dict[int, list[int]] = {}
    for number in sorted(first.values()):
        stages.setdefault(layout.sites[number].stage, []).append(number)
    inside = [tuple(sites) for sites in stages.values()]
    return [*inside, tuple(sites[-1] for sites in inside)] if len(inside) > 1 else inside


def _coarsest(sites: list[HeadSite]) -> tuple[int, int]:
    """The smallest of their grids."""
    return min((site.token_grid for site in sites), key=lambda size: size[0] * size[1])


def _rows(stream: Tensor, site: HeadSite, grid: tuple[int, int], width: int) -> Tensor:
    """(B, T, C) -> (B, cells of ``grid``, ``width``) patches, averaged over the cells; zeros beside narrow streams."""
    wide = stream.double()
    # 0, or NaN where a prefix token is not finite: that is an error at the end, though the token is left out
    nothing = 0 * wide[:, : site.prefix_tokens].sum((1, 2))
    patches = (wide[:, site.prefix_tokens :] + nothing[:, None, None]).mT.unflatten(2, site.token_grid)
    pooled = patches if site.token_grid == grid else adaptive_avg_pool2d(patches, grid)
    return pad(pooled.flatten(2).mT, (0, width - stream.shape[2]))
