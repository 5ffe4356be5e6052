"""Attention entropy: the entropy of a query's row of weights; larger means that a head spreads wider.

Clark, Khandelwal, Levy & Manning, 2019, arXiv 1906.04341, section 3.3. Rows are distributions over
all keys that a query may attend to, prefix tokens included, padding not; Swin's rows are
renormalised over their shift region.
"""

from torch import Tensor

from mhprobe.heads import HeadBatch
from mhprobe.measures.base import counts, mean_of, sums
from mhprobe.measures.parts.places import MeanOfAttention, Piece, over_queries
from mhprobe.stats.intervals import SIZE


class Entropy(MeanOfAttention):
    """Mean over queries (prefix tokens too) and images of the entropy of attention.

    Columns, (A,), larger is broader: value in nats, with low and high; share: of the maximum
    ln(number of keys), in [0, 1], over queries with more than one key (NaN without any);
    class_query: value of the class token's own row, NaN without one; uniform: value of even
    attention, the maximum.

    >>> import torch
    >>> from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
    >>> layout = HeadLayout((HeadSite("attn", 0, 0, num_heads=2, head_dim=1, grid=(1, 2), pixels=(16.0, 16.0)),))
    >>> even, same = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]  # two tokens look at both, or at themselves
    >>> attn = torch.tensor([[[even, same]]])  # (1 image, 1 window, 2 heads, queries, keys)
    >>> batch = HeadBatch(z=(), attn=(attn,), logits=torch.zeros(1, 2), valid=torch.tensor([True]))
    >>> measure = Entropy(layout)
    >>> measure.update(batch)
    >>> [round(value, 4) for value in measure.compute().tolist()]  # ln 2, and nothing left to doubt
    [0.6931, 0.0]
    """

    fooled_by = "seen: a fixed offset: queries whose key lies outside the grid spread out; a sink, which is sharp too"
    texts = True
    within = SIZE
    label = "entropy of attention (nats)"
    unit = "nats"
    larger = "attention is spread wider"
    also = ("by_depth",)

    share_total: Tensor = sums("A")  # over images and queries of entropy / ln(keys)
    class_total: Tensor = sums("A")  # over images of the class token's row
    choices: Tensor = counts("A")  # queries with more than one key
    even: Tensor = sums("A")  # over queries of ln(keys)

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        entropy_bWHQ = -piece.x_ln_x
        top_WQ = places.pairs.sum(-1).clamp(min=1).double().log()
        choice_WQ = top_WQ > 0
        real_WQ, images = places.query_token >= 0, len(entropy_bWHQ)
        self.choices[span] += images * choice_WQ.sum()
        self.even[span] += images * top_WQ[real_WQ].sum()
        self.add_images_of(piece, piece.of_images(entropy_bWHQ, real_WQ), piece.counts(real_WQ))
        self.share_total[span] += over_queries(
            entropy_bWHQ / top_WQ.masked_fill(~choice_WQ, 1.0)[:, None], choice_WQ
        )
        self.class_total[span] += over_queries(entropy_bWHQ, places.class_queries)

    def finish(self) -> dict[str, Tensor]:
        return {
            **self.over_images(),
            "share": mean_of(self.share_total, self.choices),
            "class_query": self.of_class(self.class_total),
            "uniform": self.even / self.image_sums[1],
        }
