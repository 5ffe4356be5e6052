"""Likeness of a head's outputs in two networks, and the likeness that chance alone gives.

SVCCA (Raghu et al. 2017, arXiv 1706.05806), in a layout with a site per head of A, whose two heads
are that head in both networks. Chance is the same two on different images, position by position.

Shapes: A heads of network A, T tokens, D head width.
"""

import dataclasses
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.data.draws import evenly_spread
from mhprobe.differences.errors import Pairs
from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.base import MeasureWarning
from mhprobe.measures.svcca import SVCCA

TOKENS = 128  # of an image, evenly: neighbours say much the same, and sums are kept for each
FOLDS = 16  # of images that chance is drawn from
ENDS = {"": "value", "_low": "low", "_high": "high", "_null": "null"}


class Itself:
    """Sums over batches of every head's outputs in both networks. pairs: of sites."""

    def __init__(self, pairs: Pairs) -> None:
        self.places = list[int]()
        self.count = sum(len(pair.numbers) for pair in pairs.heads)
        sites, before = [], 0
        for pair in pairs.heads:
            for head in pair.mine:
                self.places.append(before + head)
                name = f"{pair.site.name}.{head}"
                sites.append(dataclasses.replace(pair.site, name=name, num_heads=2))
            before += len(pair.numbers)
        self.measure = SVCCA(HeadLayout(tuple(sites)), folds=FOLDS) if sites else None

    def add(self, images: Tensor, both: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add a batch. both: by head that both networks have (B, T, D) of A and of B, in the order of A."""
        if self.measure is None:
            return
        beside = []
        for mine, theirs in both:
            chosen = torch.tensor(evenly_spread(TOKENS, mine.shape[1]), device=mine.device)
            beside.append(torch.stack([one[:, chosen].float() for one in (mine, theirs)], 2).cpu())
        valid = torch.ones(len(images), dtype=torch.bool)
        self.measure.update(
            HeadBatch(
                z=tuple(beside),
                logits=torch.zeros(len(images), 1),
                valid=valid,
                images=images.cpu(),
            )
        )

    def columns(self) -> dict[str, Tensor]:
        """(A,) ``svcca`` with itself, in [0, 1], with ``_low``, ``_high`` and ``_null``; NaN of heads that are gone.

        Nothing where the tokens are too few for the heads' width.
        """
        if self.measure is None:
            return {}
        with warnings.catch_warnings(action="ignore", category=MeasureWarning):
            try:
                found = self.measure.columns()
            except UserError:  # fewer tokens than channels: everything would be alike
                return {}
        columns = {}
        for ending, name in ENDS.items():
            column = torch.full((self.count,), torch.nan, dtype=torch.float64)
            pairs_of = torch.arange(len(self.places)) * 2
            column[self.places] = found[name][pairs_of, pairs_of + 1].double()
            columns[f"svcca{ending}"] = column
        return columns
