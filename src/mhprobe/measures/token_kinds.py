"""Token kinds: the share of a head's attention that goes to each kind of key.

Clark, Khandelwal, Levy & Manning, 2019, arXiv 1906.04341, section 3, for words. Kinds of patches:
kinds.py. A row of 14 tokens gets 7 % of attention spread evenly over 196, so each share comes with
that of even attention.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.base import sums
from mhprobe.measures.parts.kinds import KINDS, OfKinds, Same, Seen, even_of, kinds_in, rows_of
from mhprobe.measures.parts.places import (
    Piece,
    where_site,
)
from mhprobe.stats.intervals import SHARE

COLUMNS = (*KINDS, "cls_to_cls")


class TokenKinds(OfKinds):
    """Mean share of attention from patch queries to each kind of key.

    value: the kind (a column below) of column "value". threshold: standard deviations above the
        image's mean norm from which a token is of high norm. Raises UserError for an unknown kind,
        and for one that the model does not have.

    Columns, (A,) shares in [0, 1], larger means more attention: value, with low and high; cls,
    registers, self, neighbours (all four together), above, below, left, right (each of them),
    same_row, same_column, border, high_norm, from patch queries; cls_to_cls from the class token's
    own row; uniform_<kind>, uniform: of even attention. Kinds overlap. NaN for a kind that a model
    does not have. Swin's rows are renormalised over the shift region.
    """

    fooled_by = "seen: a place that often shows one kind of thing: a head for the first patch is a head for the border"
    needs = frozenset({"attn", "stream"})
    larger = "more attention goes to tokens of this kind"
    within = SHARE
    also = ("kind_ratios",)

    mass: Tensor = sums("A", len(COLUMNS))  # over images and queries of attention to each kind
    even: Tensor = sums("A", len(COLUMNS))  # the same of even attention

    def __init__(self, layout: HeadLayout, value: str = "neighbours", **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        if value not in COLUMNS:
            raise UserError(
                f"token_kinds: value is one of {', '.join(COLUMNS)}, got {quoted(value)}."
            )
        site = layout.sites[0]
        if not _has(value, site):
            needed = "registers" if value == "registers" else "a class token"
            raise UserError(
                f"token_kinds: value={value} needs {needed}, but the model of {site.name} has "
                "none. "
                f"Choose another kind, e.g. value=neighbours."
            )
        self.main = value
        self.label = f"share of attention: {value.replace('_', ' ')}"

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        places, span = piece.places, piece.span
        kinds = kinds_in(piece, batch, self.threshold)
        parts = []
        for seen in (rows_of(piece), even_of(piece)):
            of_kinds = kinds.on(seen, patches=True)
            of_class = _of_class(piece, seen)[..., None].expand(*of_kinds.shape[:2], -1)
            parts.append(torch.cat([of_kinds, of_class], -1))
        self.mass[span] += parts[0].sum(0)
        self.even[span] += parts[1].sum(0)
        asking = places.class_queries if self.main == "cls_to_cls" else places.query_patch
        of_main_bH = parts[0][..., COLUMNS.index(self.main)]
        self.add_images_of(piece, of_main_bH, piece.counts(asking))

    def finish(self) -> dict[str, Tensor]:
        queries = self.patch_queries
        columns, uniform = {}, {}
        for number, kind in enumerate(COLUMNS):
            rows = self.images * (1 if kind == "cls_to_cls" else queries)
            has = functools.partial(_has, kind)
            columns[kind] = where_site(self.layout, self.mass[:, number] / rows, has)
            uniform[f"uniform_{kind}"] = where_site(self.layout, self.even[:, number] / rows, has)
        has = functools.partial(_has, self.main)
        return {
            **{
                name: where_site(self.layout, part, has)
                for name, part in self.over_images().items()
            },
            **columns,
            "uniform": uniform[f"uniform_{self.main}"].clone(),
            **uniform,
        }


def _of_class(piece: Piece, seen: Seen) -> Tensor:
    """(b, H) of the class token's row, what the class token gets."""
    places = piece.places
    window, query = places.class_queries.nonzero(as_tuple=True)
    if isinstance(seen, Same):
        return torch.full((1, 1), seen.value * len(query), dtype=torch.float64, device=seen.device)
    row_bnHK = seen.values[:, window, :, query].transpose(0, 1)
    return (row_bnHK * places.is_class[window][:, None]).sum((1, 3))


def _has(kind: str, site: HeadSite) -> bool:
    if kind in ("cls", "cls_to_cls"):
        return site.class_token
    return kind != "registers" or site.prefix_tokens > int(site.class_token)
