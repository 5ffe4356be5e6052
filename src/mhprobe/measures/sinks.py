"""Attention sinks: does one token draw nearly all queries, and does the head do nothing by it, or hand something out?

Xiao et al., 2024, arXiv 2309.17453, saw heads that rest on the first token; Darcet et al., 2024,
arXiv 2309.16588, in ViTs on tokens of high norm. A token is a sink of a head, in an image, if 90 %
of the queries that may look at it give it half of their attention or more. What the head writes
tells whether it rests there and writes nothing (a no-op), or carries what is there to all tokens (a
broadcast). In Swin every window has its own sink; in a shifted window the largest region counts if
it is more than half of it. Padding of a text neither looks nor is written to.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, norm_written
from mhprobe.measures.base import counts, mean_of, sums
from mhprobe.measures.parts.functions import FUNCTIONS
from mhprobe.measures.parts.places import MeanOfAttention, Piece, real_tokens, where_site
from mhprobe.stats.intervals import SHARE

GIVES = 0.5  # of a query's attention, at least
QUIET = FUNCTIONS["no-op"].limit  # of the median head's write, less than


class Sinks(MeanOfAttention):
    """Mean over images (and windows) of the share of all attention that the token which draws most gets.

    queries: share of queries from which a token is a sink. Raises UserError unless it is in (0, 1].

    Columns, (A,): value in [0, 1], larger is more of a sink, with low and high; uniform: of even
    attention; sink: share of images with one; class_token: share of images where the token that
    draws most is the class token, NaN without one; write: mean over tokens of ||z_h W_O,h|| /
    ||stream||; common in [0, 1]: length of the mean write over tokens / mean length, 1 if all
    tokens are given the same, 0 for a head that writes nothing; role: 0 where ``sink`` is below
    one half, 1 a no-op: it writes less than a quarter of the model's median head, 2 a broadcast.
    """

    fooled_by = (
        "by definition: a token that many queries have a reason to look at, as a large object"
    )
    needs = frozenset({"attn", "stream", "weights"})
    texts = True
    within = SHARE
    label = "share of attention on one token"
    larger = "more of the head's attention rests on one token"

    sinks: Tensor = counts("A")  # how many windows of images have a sink
    at_class: Tensor = counts("A")  # of them with the largest share on the class token
    ratio: Tensor = sums("A")  # over images and tokens of |write| / |stream|
    tokens: Tensor = counts("A")  # images x tokens
    even: Tensor = sums("A")  # over images and windows of one over the number of keys
    shared: Tensor = sums("A")  # over images of |mean write| / mean |write|

    def __init__(self, layout: HeadLayout, queries: float = 0.9, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        if not 0 < queries <= 1:
            raise UserError(f"sinks: queries is a share above 0, at most 1, got {queries}.")
        self.queries = queries

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        span, places = piece.span, piece.places
        row_bWHQK = piece.rows
        gives = row_bWHQK >= GIVES
        if places.start is None:
            gives = gives & places.pairs[:, None]
        gives_bWHK = gives.sum(3, dtype=torch.int32).long()  # a third of the time of sums in int64
        whole = self.whole(piece, piece.columns, gives_bWHK, places.pairs.sum(1))
        if whole is None:
            return
        total_bWHK, gives_bWHK, queries_WK = whole
        # keys that more than half of the window's places, or of the text's words, may look at
        size_W = places.patch.sum(1, keepdim=True) if piece.site.line else places.token.shape[1]
        keys_WK = queries_WK * 2 > size_W
        there_W = keys_WK.any(1)
        queries_WK = queries_WK.clamp(min=1)
        mean_bWHK = total_bWHK / queries_WK[:, None]
        share_bWHK = gives_bWHK.double() / queries_WK[:, None]
        outside = ~keys_WK[:, None]
        most_bWH, key_bWH = (
            part[:, there_W] for part in mean_bWHK.masked_fill(outside, -1).max(-1)
        )
        given_bWH = share_bWHK.masked_fill(outside, -1).amax(-1)[:, there_W]
        windows = 1 if piece.site.line else most_bWH.shape[1]
        self.add_images(span, most_bWH[0] if piece.site.line else most_bWH.sum(1), windows)
        self.sinks[span] += (given_bWH >= self.queries).sum((0, 1))
        self.even[span] += (
            len(most_bWH) * (1 / (queries_WK * keys_WK).amax(1)[there_W].double()).sum()
        )
        if piece.site.class_token:
            self.at_class[span] += (key_bWH == 0).sum((0, 1))

    def finish_batch(self, batch: HeadBatch) -> None:
        streams = batch.need("stream", self.name)
        for number, site in enumerate(self.layout.sites):
            (z, output), span = batch.writing(number, self.name), self.layout.span(number)
            z_BTHD, output_HDC = z[batch.valid].double(), output.double()
            length_BTH = norm_written(z_BTHD, output_HDC)
            real_BT = real_tokens(self.name, batch, number, site)
            stream_BT = (
                streams[site.block]
                .before[batch.valid]
                .double()
                .norm(dim=-1)
                .where(real_BT > 0, 1.0)
            )
            self.ratio[span] += (length_BTH / stream_BT[..., None] * real_BT[..., None]).sum((0, 1))
            self.tokens[span] += real_BT.sum().long()
            share_BT = real_BT / real_BT.sum(1, keepdim=True)
            mean_BH = norm_written((z_BTHD * share_BT[..., None, None]).sum(1), output_HDC)
            usual_BH = (length_BTH * share_BT[..., None]).sum(1)
            self.shared[span] += (
                mean_BH / usual_BH.clamp(min=torch.finfo(torch.float64).tiny)
            ).sum(0)

    def finish(self) -> dict[str, Tensor]:
        windows = self.image_sums[1]
        sink, write = mean_of(self.sinks, windows), mean_of(self.ratio, self.tokens)
        role = torch.where(
            (write < QUIET * write.quantile(0.5)) | (write == 0), 1, 2
        )  # the median may be 0, too
        return {
            **self.over_images(),
            "uniform": mean_of(self.even, windows),
            "sink": sink,
            "class_token": where_site(
                self.layout, mean_of(self.at_class, windows), lambda site: site.class_token
            ),
            "write": write,
            "common": self.shared / self.images,
            "role": torch.where(sink >= FUNCTIONS["sink"].limit, role, 0),
        }
