"""Do two layers compute the same thing? CKA or SVCCA between whole layers instead of heads.

Kornblith, Norouzi, Lee & Hinton, 2019, arXiv 1905.00414, and Raghu et al., 2021, arXiv 2108.08810,
who find ViT's layers uniform. Here rows are the tokens of all images, so only layers with equally
many tokens are compared.
Shapes: C channels of a layer, G sites of a group.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.cka import linear_cka
from mhprobe.measures.parts.folds import Rows
from mhprobe.measures.parts.moments import Parts
from mhprobe.measures.parts.pairs import Similarity, token_count
from mhprobe.measures.svcca import correlated

Of = Literal["layers", "blocks"]
Method = Literal["cka", "svcca"]


class LayerSimilarity(Similarity):
    """Similarity of every pair of layers with the same number of tokens.

    of: "layers" compares the outputs of all heads of a site side by side, before the gates;
        "blocks" the residual stream behind the site's block.
    method: "cka" (rotations and one scale do not matter, large directions count most) or "svcca"
        (linear maps do not matter, all directions that make up ``variance`` count alike).
    null, null_draws, seed, folds, interval: as in Similarity. In ViT-B a fold of the interval takes
    680 MB.

    Columns: value (S, S) in [0, 1], larger is more alike; low, high, null (S, S); images (), rows
    (S,). NaN where the numbers of tokens differ; with "blocks" also for all sites of a block but
    its first. Raises UserError for unknown options; of svcca also UserError and FewImages as in
    Similarity.
    """

    fooled_by = "by definition: layers that add different things to what both carry along; one direction they share"
    kind = "pairwise_layers"
    larger = "the two layers are more alike"
    noun = "layers"
    column_names: ClassVar[tuple[str, ...]] = (
        "value",
        "low",
        "high",
        "null",
        "rows",
    )  # of a Similarity's

    def __init__(
        self,
        layout: HeadLayout,
        of: Of = "layers",
        method: Method = "cka",
        variance: float = 0.99,
        folds: int = 8,
        **kwargs: Any,
    ) -> None:
        self.of, self.label = of, f"{'SVCCA' if method == 'svcca' else 'linear CKA'} of {of}"
        super().__init__(layout, self.grouped(layout), folds=folds, **kwargs)
        if not 0 < variance <= 1:
            raise UserError(
                f"{self.name}: variance is a share above 0 and at most 1, got {variance}."
            )
        self.method, self.variance = method, variance
        self.needs = frozenset({"stream"}) if of == "blocks" else frozenset()

    def grouped(self, layout: HeadLayout) -> list[tuple[int, ...]]:
        """Sites, by their number of tokens."""
        by_tokens: dict[int | None, list[int]] = {}
        for number in self.compared(layout):
            by_tokens.setdefault(token_count(layout.sites[number]), []).append(number)
        return [tuple(sites) for sites in by_tokens.values()]

    def compared(self, layout: HeadLayout) -> list[int]:
        """Numbers of the sites to compare; for blocks the first of each, since its sites share a stream."""
        sites = reversed(list(enumerate(layout.sites)))
        return sorted(
            {
                site.block if self.of == "blocks" else number: number for number, site in sites
            }.values()
        )

    def shape(self, group: int, batch: HeadBatch) -> tuple[int, int]:
        features = [_features(batch, self.of, self.layout, s) for s in self.groups[group]]
        counts = {tokens.shape[1] for tokens in features}
        if len(counts) > 1:
            raise UserError(
                f"{self.name}: {self.layout.sites[self.groups[group][0]].name} and the layers it "
                "is compared with have "
                f"{sorted(counts)} tokens, expected equally many."
            )
        return features[0].shape[1], max(tokens.shape[2] for tokens in features)

    def rows_of(self, group: int) -> Rows:
        return _side_by_side, self.of, self.layout, self.groups[group], self.shapes[group][1]

    def check_rows(self) -> None:
        if self.method == "svcca":
            super().check_rows()

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        return (
            {"value": linear_cka(heads)}
            if self.method == "cka"
            else correlated(heads, self.variance)
        )

    def finish(self) -> dict[str, Tensor]:
        columns = super().finish()
        return {name: columns[name] for name in self.column_names}


def _features(batch: HeadBatch, of: str, layout: HeadLayout, number: int) -> Tensor:
    if of == "layers":
        return batch.z[number].flatten(2)
    return batch.need("stream", "layer_similarity")[layout.sites[number].block].after


def _side_by_side(
    batch: HeadBatch, of: str, layout: HeadLayout, sites: tuple[int, ...], width: int
) -> Tensor:
    """(B, T, G * width) layers, narrow ones (pruned heads) padded by zeros, which change no similarity."""
    features = [_features(batch, of, layout, number) for number in sites]
    return torch.cat([pad(x, (0, width - x.shape[2])) for x in features], -1)
