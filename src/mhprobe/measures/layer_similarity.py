"""Do two layers compute the same thing? CKA or SVCCA between whole layers instead of heads.

Kornblith, Norouzi, Lee & Hinton, 2019, arXiv 1905.00414, and Raghu et al., 2021, arXiv 2108.08810, who see ViT's
uniform structure this way. Rows are the tokens of all images, as between heads; both papers take images as rows (the
second with CKA's estimate per batch, which depends on the batch size). So layers are compared token by token, and only
where they have equally many: in Swin within a stage.

Shapes: B images, T tokens, C channels of a layer, S sites, G sites of a group.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.errors import UserError, one_of
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures import canonical
from mhprobe.measures.base import Measure
from mhprobe.measures.cka import linear_cka
from mhprobe.measures.moments import Parts, SecondMoments
from mhprobe.measures.pairs import check_rows, token_count, warn_dead

Of = Literal["layers", "blocks"]
Method = Literal["cka", "svcca"]


class LayerSimilarity(Measure):
    """Similarity of every pair of layers with the same number of tokens.

    of: "layers" compares the outputs of all heads of a site side by side, before the gates; "blocks" the residual
        stream behind the site's block.
    method: "cka" (rotations and one scale do not matter, large directions count most) or "svcca" (linear maps do not
        matter, all directions that make up ``variance`` count alike).
    null_draws, seed: of SVCCA's chance level; CKA's has a closed form.

    Columns: value (S, S) in [0, 1], larger is more alike, 1 for a layer with itself, 0 for one that does not vary; null
    (S, S): the same for independent rows; rows (S,), how many. NaN where the numbers of tokens differ.

    UserError when svcca has fewer rows than a layer has channels; FewRows warns below ten times that.
    """

    kind = "pairwise_layers"

    def __init__(
        self,
        layout: HeadLayout,
        of: Of = "layers",
        method: Method = "cka",
        variance: float = 0.99,
        null_draws: int = 20,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        one_of(self.name, "of", of, Of)
        one_of(self.name, "method", method, Method)
        if not 0 < variance <= 1:
            raise UserError(f"layer_similarity: variance is a share above 0 and at most 1, got {variance}.")
        canonical.check_draws(self.name, null_draws)
        self.of = of
        self.method = method
        self.variance = variance
        self.null_draws = null_draws
        self.seed = seed
        self.needs = frozenset({"stream"}) if of == "blocks" else frozenset()
        self.label = f"{'SVCCA' if method == 'svcca' else 'linear CKA'} of {of}"
        by_tokens: dict[int | None, list[int]] = {}
        for number, site in enumerate(layout.sites):
            by_tokens.setdefault(token_count(site), []).append(number)
        self.groups = [tuple(sites) for sites in by_tokens.values()]
        self.widths: list[int] = []
        if of == "layers":
            self._declare([max(layout.sites[s].channels for s in sites) for sites in self.groups])

    def _declare(self, widths: list[int]) -> None:
        """Sums for groups of layers this wide."""
        self.widths = widths
        for number, (sites, width) in enumerate(zip(self.groups, widths, strict=True)):
            zeros = SecondMoments.zeros(len(sites) * width, self.device)
            self.add_state(f"rows_{number}", zeros.rows)
            self.add_state(f"total_{number}", zeros.total)
            self.add_state(f"outer_{number}", zeros.outer)

    def update(self, batch: HeadBatch) -> None:
        features = [_features(batch, self.of, self.layout, s) for s in range(len(self.layout.sites))]
        if not self.widths:  # a layout does not know how wide the stream is; every rank learns it from its first batch
            self._declare([max(features[s].shape[2] for s in sites) for sites in self.groups])
        if not batch.valid.any():
            return
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            tokens = {features[s].shape[1] for s in sites}
            if len(tokens) > 1:
                raise UserError(
                    f"layer_similarity: {self.layout.sites[sites[0]].name} and the layers it is compared with have "
                    f"{sorted(tokens)} tokens, expected equally many."
                )
            self._moments(number).merge(batch.derive(_layer_moments, self.of, self.layout, sites, width))
        self.images += batch.valid.sum()

    def finish(self) -> dict[str, Tensor]:
        count = len(self.layout.sites)
        value = torch.full((count, count), torch.nan, dtype=torch.float64, device=self.device)
        null = value.clone()
        rows = self.images.new_zeros(count)
        dead = []
        for number, (sites, width) in enumerate(zip(self.groups, self.widths, strict=True)):
            moments = self._moments(number)
            if self.method == "svcca":
                check_rows(self.name, self.layout.sites[sites[0]].name, int(moments.rows), width)
            layers = Parts.of(moments, width)
            found, chance = self._compare(layers)
            found.diagonal().fill_(1)
            both = layers.alive[:, None] & layers.alive
            index = torch.tensor(sites, device=self.device)
            value[index[:, None], index] = found.where(both, 0.0)
            null[index[:, None], index] = chance.where(both, 0.0)
            rows[index] = moments.rows
            dead += [
                self.layout.sites[s].name for s, alive in zip(sites, layers.alive.tolist(), strict=True) if not alive
            ]
        warn_dead(self.name, "layers", dead)
        return {"value": value, "null": null, "rows": rows}

    def _moments(self, group: int) -> SecondMoments:
        return SecondMoments(*(getattr(self, f"{name}_{group}") for name in ("rows", "total", "outer")))

    def _compare(self, layers: Parts) -> tuple[Tensor, Tensor]:
        """(G, G) similarity, and what chance makes of it."""
        if self.method == "cka":
            return linear_cka(layers)
        kept_GC = canonical.kept(layers, self.variance)
        rho_GGC = canonical.correlations(layers, kept_GC)
        return canonical.mean(rho_GGC), canonical.null(layers, kept_GC, self.null_draws, self.seed)[0]


def _features(batch: HeadBatch, of: str, layout: HeadLayout, number: int) -> Tensor:
    """(B, T, C) what is compared of one site."""
    if of == "layers":
        return batch.z[number].flatten(2)
    return batch.need("stream", "layer_similarity")[layout.sites[number].block].after


def _layer_moments(batch: HeadBatch, of: str, layout: HeadLayout, sites: tuple[int, ...], width: int) -> SecondMoments:
    features = [_features(batch, of, layout, number) for number in sites]
    return SecondMoments.of(_rows(features, width, batch.valid))


def _rows(features: list[Tensor], width: int, valid: Tensor) -> Tensor:
    """(N, G * width) layers side by side; zeros beside narrow ones (pruned heads) change no similarity."""
    padded = [torch.nn.functional.pad(x[valid], (0, width - x.shape[2])) for x in features]
    return torch.cat(padded, -1).flatten(0, 1)
