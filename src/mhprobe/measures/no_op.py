"""The no-op test: does it matter how much a head looks at special tokens?

Clark, Khandelwal, Levy & Manning, 2019, arXiv 1906.04341, section 3.2: a head with nothing to do
attends to [SEP], so the gradient of the loss with respect to that attention should be small. Here
dL/dA is compared with all other keys.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout
from mhprobe.measures.base import mean_of, sums
from mhprobe.measures.parts.kinds import KINDS, OfKinds, Seen, even_of, kinds_in, pairs_of, rows_of
from mhprobe.measures.parts.places import Piece
from mhprobe.stats.intervals import SIZE

COLUMNS = ("special", "other", *KINDS)


class NoOp(OfKinds):
    """Mean |dL/dA| on special keys, relative to that on all others.

    special: kinds of special keys; default: the class token, without it registers, without these
    tokens of high norm.
    threshold: standard deviations above the image's mean norm from which a token is of high norm.
    Raises UserError for an unknown kind, and a threshold that is not above 0.

    Columns, (A,): value = gradient_special / gradient_other, below 1 if looking at special keys
    matters less (a no-op), NaN without special keys, with low and high; null: 1, no difference;
    attention: mean share of attention to special keys, over all queries, uniform_attention: of even
    attention; gradient_special, gradient_other and gradient_<kind>: mean over queries, keys of that
    kind and images of |dL/dA|, in nats per unit of attention.
    """

    fooled_by = "seen: a head that looks at a special token and writes nothing: its slope there need not be small"
    needs = frozenset({"attn", "attn_grad", "stream"})
    numbers = 4  # of special keys and others: sizes and how many
    within = SIZE
    label = "|dL/dA|, special over other keys"
    larger = "the loss depends more on attention to special tokens than to other keys"
    also = ("special_keys",)

    size: Tensor = sums("A", len(COLUMNS))  # of |dL/dA| over images, queries, and keys of each kind
    pairs: Tensor = sums("A", len(COLUMNS))  # how many there were
    mass: Tensor = sums("A")  # over images and queries of attention to special keys
    even: Tensor = sums("A")  # the same of even attention

    def __init__(
        self, layout: HeadLayout, special: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(layout, **kwargs)
        if special is None:  # the one kind that says most about this model
            site = layout.sites[0]
            special = (
                ("cls",)
                if site.class_token
                else ("registers",)
                if site.prefix_tokens
                else ("high_norm",)
            )
        if not special or set(special) - set(KINDS):
            raise UserError(
                f"no_op: special lists some of {', '.join(KINDS)}, got {list(special)}."
            )
        self.special = tuple(special)

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        if batch.rows is None:
            batch.need("attn_grad", self.name)
        kinds = kinds_in(piece, batch, self.threshold)
        numbers = []
        for total, seen in (
            (self.size, Seen(piece.slopes.abs(), places)),
            (self.pairs, pairs_of(piece)),
        ):
            special_bH = kinds.on_any(seen, self.special)
            other_bH = seen.columns.sum((1, 3)) - special_bH
            of_kinds_bHk = kinds.on(seen)
            groups_bHk = torch.stack([special_bH, other_bH], -1).expand(len(of_kinds_bHk), -1, 2)
            groups_bHk = torch.cat([groups_bHk, of_kinds_bHk], -1)
            total[span] += groups_bHk.sum(0)
            numbers.append(groups_bHk[..., :2])
        (special_bH, other_bH), (specials_bH, others_bH) = (part.unbind(-1) for part in numbers)
        self.add_images_of(piece, special_bH, specials_bH, other_bH, others_bH)
        self.mass[span] += kinds.on_any(rows_of(piece), self.special).sum(0)
        even_bH = kinds.on_any(even_of(piece), self.special)
        self.even[span] += even_bH.expand(len(piece.attn), -1).sum(0)

    def finish(self) -> dict[str, Tensor]:
        queries = self.per_site(lambda site, places: (places.token >= 0).sum())
        size = mean_of(self.size, self.pairs)
        return {
            **self.over_images(lambda sums: sums[0] / sums[1] / (sums[2] / sums[3])),
            "null": torch.ones_like(self.mass),
            "attention": self.mass / self.images / queries,
            "uniform_attention": self.even / self.images / queries,
            **{f"gradient_{name}": size[:, number] for number, name in enumerate(COLUMNS)},
        }
