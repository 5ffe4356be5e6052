"""Do two layers compute the same thing? CKA or SVCCA between whole layers instead of heads.

Kornblith, Norouzi, Lee & Hinton, 2019, arXiv 1905.00414, and Raghu et al., 2021, arXiv 2108.08810, who see ViT's
uniform structure this way. Rows are the tokens of all images, as between heads; both papers take images as rows (the
second with CKA's estimate per batch, which depends on the batch size). So layers are compared token by token, and only
where they have equally many: in Swin within a stage.

Shapes: B images, T tokens, C channels of a layer, S sites, G sites of a group.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.errors import UserError, one_of
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.measures.cka import linear_cka, linear_cka_by_rows
from mhprobe.measures.parts import canonical
from mhprobe.measures.parts.folds import Dealt, Folds, Null, check_rolled, declare, declared, moments_of, sums_of
from mhprobe.measures.parts.jackknife import affordable, jackknife
from mhprobe.measures.parts.moments import Moments, Parts, Seen
from mhprobe.measures.parts.pairs import check_images, check_null, check_rows, token_count, warn_dead
from mhprobe.stats.intervals import SHARE

Of = Literal["layers", "blocks"]
Method = Literal["cka", "svcca"]


class LayerSimilarity(Measure):
    """Similarity of every pair of layers with the same number of tokens.

    of: "layers" compares the outputs of all heads of a site side by side, before the gates; "blocks" the residual
        stream behind the site's block.
    method: "cka" (rotations and one scale do not matter, large directions count most) or "svcca" (linear maps do not
        matter, all directions that make up ``variance`` count alike).
    null, null_draws, seed, folds: of the chance level, as between heads (see PairMeasure). A fold takes tokens x
        channels of all layers, 13 MB of them in ViT-B.
    interval: as between heads: low and high. A fold takes the square of the channels of all layers, 680 MB of them in
        ViT-B, which therefore has no interval unless it is asked for.

    Columns: value (S, S) in [0, 1], larger is more alike, 1 for a layer with itself, 0 for one that does not vary; low,
    high (S, S): 95 % interval of what as many images give on average; null (S, S): the same two layers on each other's
    images; images (), rows (S,), how many. NaN where the numbers of tokens differ; null also where all images are in
    one fold.

    UserError when svcca has fewer rows than a layer has channels; FewImages warns with fewer images than that.
    """

    fooled_by = (
        "by definition: layers that add different things to a stream that carries the old ones along; one "
        "direction that they share"
    )
    kind = "pairwise_layers"
    larger = "the two layers are more alike"
    within = SHARE

    def __init__(
        self,
        layout: HeadLayout,
        of: Of = "layers",
        method: Method = "cka",
        variance: float = 0.99,
        null: Null = "images",
        null_draws: int = 10,
        seed: int = 0,
        folds: int = 8,
        interval: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        one_of(self.name, "of", of, Of)
        one_of(self.name, "method", method, Method)
        if not 0 < variance <= 1:
            raise UserError(f"layer_similarity: variance is a share above 0 and at most 1, got {variance}.")
        check_null(self.name, null, null_draws, folds)
        self.of = of
        self.method = method
        self.variance = variance
        self.null = null
        self.null_draws = null_draws
        self.seed = seed
        self.folds = folds
        self.interval = interval
        self.needs = frozenset({"stream"}) if of == "blocks" else frozenset()
        self.label = f"{'SVCCA' if method == 'svcca' else 'linear CKA'} of {of}" + (
            f"; null={null}" if null != "images" else ""
        )
        by_tokens: dict[int | None, list[int]] = {}
        for number, site in enumerate(layout.sites):
            by_tokens.setdefault(token_count(site), []).append(number)
        self.groups = [tuple(sites) for sites in by_tokens.values()]
        for sites in self.groups:
            check_rolled(self.name, layout.sites[sites[0]], null)
        self.widths: list[int] = []
        if of == "layers":
            self._declare([max(layout.sites[s].channels for s in sites) for sites in self.groups])

    def _declare(self, widths: list[int]) -> None:
        """Sums for groups of layers this wide."""
        self.widths = widths
        channels = [len(sites) * width for sites, width in zip(self.groups, widths, strict=True)]
        self.jackknife = affordable(self.name, self.folds, self.interval, sum(count**2 for count in channels))
        for number, count in enumerate(channels):
            declare(self, number, Moments.zeros(self.jackknife, count, self.device))

    def update(self, batch: HeadBatch) -> None:
        features = [_features(batch, self.of, self.layout, s) for s in range(len(self.layout.sites))]
        if not self.widths:  # a layout does not know how wide the stream is; every rank learns it from its first batch
            self._declare([max(features[s].shape[2] for s in sites) for sites in self.groups])
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            if self.null != "rows" and f"folds_{number}" not in self._defaults:
                tokens = features[sites[0]].shape[1]
                declare(self, number, Folds.zeros(self.folds, tokens, len(sites) * width, self.device))
        if not batch.valid.any():
            return
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            counts = {features[s].shape[1] for s in sites}
            if len(counts) > 1:
                raise UserError(
                    f"layer_similarity: {self.layout.sites[sites[0]].name} and the layers it is compared with have "
                    f"{sorted(counts)} tokens, expected equally many."
                )
            if self.null == "rows":
                moments = batch.derive(_moments, self.of, self.layout, sites, width, self.folds, self.jackknife)
            else:
                moments, sums = batch.derive(_sums, self.of, self.layout, sites, width, self.folds, self.jackknife)
                declared(self, number, Folds).merge(sums)
            declared(self, number, Moments).merge(moments)
        self.images += batch.valid.sum()

    def finish(self) -> dict[str, Tensor]:
        count = len(self.layout.sites)
        value = torch.full((count, count), torch.nan, dtype=torch.float64, device=self.device)
        columns = {"value": value, **{name: value.clone() for name in ("low", "high", "null")}}
        rows = self.images.new_zeros(count)
        dead = []
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            moments = declared(self, number, Moments)
            if self.method == "svcca":
                check_rows(self.name, self.layout.sites[sites[0]].name, int(moments.rows.sum()), width)
                check_images(self.name, int(self.images), width)
            seen = moments.parts(width)
            layers = seen(None)
            found = {**of_parts(moments, seen, self._compare), "null": self._chance(number, layers)}
            both = layers.alive[:, None] & layers.alive
            index = torch.tensor(sites, device=self.device)
            for name, part in found.items():
                if name != "null":
                    part.diagonal().fill_(1)
                columns[name][index[:, None], index] = part.where(both, 0.0)
            rows[index] = layers.rows
            dead += [
                self.layout.sites[s].name for s, alive in zip(sites, layers.alive.tolist(), strict=True) if not alive
            ]
        warn_dead(self.name, "layers", dead)
        return {**columns, "rows": rows}

    def _compare(self, layers: Parts) -> Tensor:
        """(G, G) similarity."""
        if self.method == "cka":
            return linear_cka(layers)
        return canonical.mean(canonical.correlations(layers, canonical.leading(layers, self.variance)))

    def _chance(self, group: int, layers: Parts) -> Tensor:
        """(G, G) what chance makes of it."""
        if self.null == "rows" and self.method == "cka":
            return linear_cka_by_rows(layers)
        if self.null == "rows":
            return canonical.null(layers, canonical.leading(layers, self.variance), self.null_draws, self.seed)[0]
        folds = declared(self, group, Folds)
        if not folds.deranged:
            return layers.spectrum.new_full((len(layers.alive),) * 2, torch.nan)
        rolled = self.layout.sites[self.groups[group][0]] if self.null == "rolled" else None
        drawn = [self._compare(swapped) for swapped in folds.swapped(layers, self.null_draws, self.seed, rolled)]
        return torch.stack(drawn).mean(0)


def _features(batch: HeadBatch, of: str, layout: HeadLayout, number: int) -> Tensor:
    """(B, T, C) what is compared of one site."""
    if of == "layers":
        return batch.z[number].flatten(2)
    return batch.need("stream", "layer_similarity")[layout.sites[number].block].after


def of_parts(moments: Moments, seen: Seen, compare: Callable[[Parts], Tensor]) -> dict[str, Tensor]:
    """Columns "value", "low" and "high" of a similarity of parts."""
    return jackknife(compare(seen(None)), lambda fold: compare(seen(fold)), moments.rows, SHARE)


def _moments(batch: HeadBatch, of: str, layout: HeadLayout, sites: tuple[int, ...], width: int, *folds: int) -> Moments:
    return moments_of(batch, _side_by_side(batch, of, layout, sites, width), *folds)


def _sums(
    batch: HeadBatch, of: str, layout: HeadLayout, sites: tuple[int, ...], width: int, *folds: int
) -> tuple[Moments, Dealt]:
    return sums_of(batch, _side_by_side(batch, of, layout, sites, width), *folds)


def _side_by_side(batch: HeadBatch, of: str, layout: HeadLayout, sites: tuple[int, ...], width: int) -> Tensor:
    """(B, T, G * width) layers; zeros beside narrow ones (pruned heads) change no similarity."""
    features = [_features(batch, of, layout, number) for number in sites]
    return torch.cat([pad(x, (0, width - x.shape[2])) for x in features], -1)
