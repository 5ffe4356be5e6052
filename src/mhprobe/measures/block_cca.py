"""Canonical correlations between the residual streams behind two blocks, direction by direction.

Raghu et al., 2017, arXiv 1706.05806, between layers; Byun & Kim, "What does the multi-head do?",
for blocks of a stage and for the last blocks of stages. Rows are the patches of all images,
averaged over the cells of the coarsest grid.
Shapes: G blocks of a group, R correlations.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.layer_similarity import LayerSimilarity
from mhprobe.measures.parts.folds import Rows


class BlockCCA(LayerSimilarity):
    """Mean canonical correlation (SVCCA) between the residual streams behind two blocks.

    Compares the blocks of each stage, and the last blocks of all stages.
    variance: share of a stream's variance that the kept directions explain. Other options as in
    LayerSimilarity.

    Columns over sites: value (S, S) in [0, 1], larger is more alike, NaN for pairs that are not
    compared; low, high, null (S, S); rows (S,), of the comparisons inside the stage; images (). For
    the figure, (S, S, R): rho, correlations in falling order, and null_rho; NaN behind the last.
    """

    fooled_by = "by definition: blocks that add nothing alike: the stream carries what was there before through both"
    needs = frozenset({"stream"})
    label = "SVCCA of blocks: mean canonical correlation"
    larger = "the two blocks share more"
    also = ("block_coefficients",)
    noun = "blocks"
    column_names = (*LayerSimilarity.column_names, "rho", "null_rho")

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, of="blocks", method="svcca", null="images", **kwargs)
        self.label = type(self).label

    def grouped(self, layout: HeadLayout) -> list[tuple[int, ...]]:
        """Sites of each stage, one per block; then the last one of each stage, if there are several."""
        stages = itertools.groupby(
            self.compared(layout), key=lambda number: layout.sites[number].stage
        )
        inside = [tuple(sites) for _, sites in stages]
        return [*inside, tuple(sites[-1] for sites in inside)] if len(inside) > 1 else inside

    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        sites = [self.layout.sites[s] for s in self.groups[group]]
        streams = batch.need("stream", self.name)
        channels = max(streams[site.block].after.shape[2] for site in sites)
        return min(math.prod(site.token_grid) for site in sites), channels

    def rows_of(self, group: int) -> Rows:
        return (
            _pooled,
            tuple(self.layout.sites[s] for s in self.groups[group]),
            self.shapes[group][1],
        )


def _pooled(batch: HeadBatch, sites: tuple[HeadSite, ...], width: int) -> Tensor:
    """(B, cells of the coarsest grid, G * width) streams behind the sites' blocks."""
    streams = batch.need("stream", "block_cca")
    grid = min((site.token_grid for site in sites), key=math.prod)
    return torch.cat([_rows(streams[site.block].after, site, grid, width) for site in sites], -1)


def _rows(stream: Tensor, site: HeadSite, grid: tuple[int, int], width: int) -> Tensor:
    """(B, T, C) -> (B, cells of ``grid``, ``width``) patches, averaged over the cells; zeros beside narrow streams."""
    wide = stream.double()
    # 0, or NaN where a prefix token is not finite: that is an error at the end, though the token is
    # left out
    nothing = 0 * wide[:, : site.prefix_tokens].sum((1, 2))
    patches = (wide[:, site.prefix_tokens :] + nothing[:, None, None]).mT.unflatten(
        2, site.token_grid
    )
    pooled = patches if site.token_grid == grid else adaptive_avg_pool2d(patches, grid)
    return pad(pooled.flatten(2).mT, (0, width - stream.shape[2]))
