"""Confidence: the largest attention weight of a query's row, on average.

Voita, Talbot, Moiseev, Sennrich & Titov, 2019, arXiv 1905.09418, section 4. Class, distillation and
register tokens, and padding, are left out of the maximum, but rows are not renormalised: a head
that looks at the class token alone is not confident. A neuron's confidence is its rate: the share
of tokens that it fires on.
"""

import torch
from torch import Tensor

from mhprobe.heads import KINDS, HeadBatch
from mhprobe.measures.base import sums
from mhprobe.measures.parts.places import MeanOfAttention, Piece, over_queries, where_site
from mhprobe.stats.intervals import SHARE


class Confidence(MeanOfAttention):
    """Mean over patch queries and images of the largest weight on a patch; of a neuron the share of tokens above 0.

    In Swin only keys of the query's own shift region count.

    Columns, (A,) in [0, 1], larger is more certain: value = without_prefix, with low and high;
    with_prefix: maximum also over class, distillation and register tokens; class_query: value of
    the class token's own row, NaN without one;
    uniform: value of even attention. Of neurons all but the first are NaN.
    """

    fooled_by = (
        "seen: a sink at the class token: special keys are left out, and the head looks spread out"
    )
    texts = True
    of_units = frozenset(KINDS)
    within = SHARE
    label = "confidence: mean largest weight"
    larger = "the head is more certain where to look"
    also = ("by_depth",)

    prefix_total: Tensor = sums("A")  # over images and patch queries, maximum over all keys
    class_total: Tensor = sums("A")  # over images of the class token's row
    even: Tensor = sums("A")  # over images and patch queries of one over their number of keys

    def finish_batch(self, batch: HeadBatch) -> None:
        for number, site in enumerate(self.layout.sites):
            if site.kind == "neuron":
                fires_BTN = batch.z[number][batch.valid][..., 0] > 0
                self.add_images(self.layout.span(number), fires_BTN.sum(1), fires_BTN.shape[1])

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        patch_bWHQ = piece.best.top.clamp(min=0)  # of a row without keys
        all_bWHQ = _largest(piece, patch_bWHQ)
        asking_WQ = places.query_patch
        self.even[span] += len(patch_bWHQ) * (1 / places.pairs.sum(-1).double())[asking_WQ].sum()
        self.prefix_total[span] += piece.of_images(all_bWHQ, asking_WQ).sum(0)
        self.add_images_of(piece, piece.of_images(patch_bWHQ, asking_WQ), piece.counts(asking_WQ))
        self.class_total[span] += over_queries(patch_bWHQ, places.class_queries)

    def finish(self) -> dict[str, Tensor]:
        queries = self.image_sums[1]
        of_heads = {
            "without_prefix": self.image_sums[0] / queries,
            "with_prefix": self.prefix_total / queries,
            "class_query": self.of_class(self.class_total),
            "uniform": self.even / queries,
        }
        means = {
            n: where_site(self.layout, values, lambda site: site.kind == "head")
            for n, values in of_heads.items()
        }
        return {**self.over_images(), **means}


def _largest(piece: Piece, patch_bWHQ: Tensor) -> Tensor:
    """(b, W, H, Q) largest weight on all keys, from that on patches. NaN stays."""
    start = piece.places.start
    if start is None:
        # a product: NaN is not masked away
        return (piece.attn * piece.places.pairs[:, None]).amax(-1)
    return torch.maximum(patch_bWHQ, piece.attn[..., :start].amax(-1)) if start else patch_bWHQ
