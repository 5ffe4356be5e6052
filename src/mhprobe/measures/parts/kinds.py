"""Kinds of keys that attention statistics ask about: who is the key to the query?

A kind is a boolean table over pairs. Kinds may overlap: the left neighbour is also in the same row.
``high_norm`` are tokens of outlying norm, which hold global information (Darcet, Oquab, Mairal &
Bojanowski, 2024, arXiv 2309.16588): patch tokens whose norm in the stream before the block is
``threshold`` standard deviations above the image's mean.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.parts.places import (
    MeanOfAttention,
    Piece,
    Places,
    even_over,
    places_alone,
    places_of,
)

DIRECTIONS = {
    "above": (-1, 0),
    "below": (1, 0),
    "left": (0, -1),
    "right": (0, 1),
}  # of the key, seen from the query
KINDS = (
    "cls",
    "registers",
    "self",
    "neighbours",
    *DIRECTIONS,
    "same_row",
    "same_column",
    "border",
    "high_norm",
)


class OfKinds(MeanOfAttention):
    """Base of measures that tell kinds of keys apart.

    UserError for a threshold that is not above 0.
    """

    empty = "there are no such tokens in the network, or none of such a norm in these images"

    def __init__(self, layout: HeadLayout, threshold: float = 3.0, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        if threshold <= 0:
            raise UserError(
                f"{self.name}: threshold is a number of standard deviations above 0, got "
                f"{threshold}."
            )
        self.threshold = threshold


class Kinds:
    """Kinds of keys of one piece.

    cls: the class token. registers: other prefix tokens (a distillation token too). self: the
    query. neighbours: up to four, and above, below, left, right: each of them. same_row,
    same_column: without the query itself. border: on the grid's rim. high_norm: see above. A kind
    that the model does not have has no keys.
    """

    def __init__(self, piece: Piece, batch: HeadBatch, threshold: float) -> None:
        site, self.places = piece.site, piece.places
        token = self.places.token
        batch.need("stream", "token kinds")
        loud_bT = batch.derive(_loud, site.block, site.prefix_tokens, threshold)[piece.images]
        loud_bWK = loud_bT[:, token.clamp(min=0)] & (token >= 0)
        # (1 or b, W, K) bool, by kinds that are the same keys for all queries
        self.keys = {**_of_keys(site, self.places), "high_norm": loud_bWK}
        lists = _lists(places_alone(site), piece.attn.device)
        self.at = {name: pairs.of(self.places.queries) for name, pairs in lists.items()}

    def on(self, values: "Seen", patches: bool = False) -> Tensor:
        """(b, H, kinds) sums over queries (patches: of patches alone) and over keys of each of ``KINDS``."""
        at = dict(self.at)
        if patches:  # all other kinds of pairs are of patches
            queries = at["self"] // self.places.token.shape[1]
            at["self"] = at["self"][self.places.query_patch.flatten()[queries]]
        found = [self._sum(values, [kind], at, patches) for kind in KINDS]
        return torch.stack(torch.broadcast_tensors(*found), -1)

    def on_any(self, values: "Seen", kinds: Sequence[str]) -> Tensor:
        """(b, H) sums over all queries and over keys that are of any of some kinds."""
        return self._sum(values, kinds, self.at)

    def _sum(
        self, values: "Seen", kinds: Sequence[str], at: Mapping[str, Tensor], patches: bool = False
    ) -> Tensor:
        found, keys = torch.zeros((), device=values.device), None
        of_keys = [self.keys[kind] for kind in kinds if kind in self.keys]
        if of_keys:
            keys = of_keys[0]
            if len(of_keys) > 1:
                keys = torch.stack(torch.broadcast_tensors(*of_keys)).any(0)
            found = found + values.on_keys(keys, patches)
        of_pairs = [at[kind] for kind in kinds if kind in at]
        if of_pairs:
            places = of_pairs[0] if len(of_pairs) == 1 else torch.cat(of_pairs).unique()
            found = found + values.at_pairs(places, keys)
        return found


class Seen:
    """Values (b, W, H, Q, K) of pairs of places of a piece, to be summed over kinds of keys.

    columns: their sums over queries, if these are known.
    """

    def __init__(self, values: Tensor, places: Places, columns: Tensor | None = None) -> None:
        self.given = columns
        pairs = None if places.start is not None else places.pairs[:, None]
        self.values = values if pairs is None else values * pairs
        self.device, self.places = values.device, places

    @functools.cached_property
    def columns(self) -> Tensor:
        """(b, W, H, K) sums over all queries."""
        return self.values.sum(3) if self.given is None else self.given

    @functools.cached_property
    def patch_columns(self) -> Tensor:
        """(b, W, H, K) sums over patches."""
        patch_WQ = self.places.query_patch
        if patch_WQ.all():
            return self.columns
        return torch.einsum("bwhqk,wq->bwhk", self.values, patch_WQ.to(self.values.dtype))

    def on_keys(self, keys: Tensor, patches: bool = False) -> Tensor:
        """(b, H) sums over queries, or patches, and ``keys`` (1 or b, W, K) bool."""
        columns = self.patch_columns if patches else self.columns
        return (columns * keys[:, :, None]).sum((1, 3))

    def at_pairs(self, at: Tensor, but: Tensor | None = None) -> Tensor:
        """(b, H) sums over pairs (N,), numbers among W x Q x K; those of keys ``but`` (1 or b, W, K) bool left out."""
        found = self.values.transpose(1, 2).flatten(2).index_select(2, at)
        if but is not None:
            window, key = self.places.window_and_key(at)
            found = found * ~but[:, window, key][:, None]
        return found.sum(-1)


class Same(Seen):
    """The same value of each pair of places, of one head, where all may attend to each other."""

    def __init__(self, value: float, places: Places) -> None:
        self.value, self.device, self.places = value, places.token.device, places

    @functools.cached_property
    def columns(self) -> Tensor:
        windows, queries = self.places.query_token.shape
        shape = 1, windows, 1, self.places.token.shape[1]
        return torch.full(shape, self.value * queries, dtype=torch.float64, device=self.device)

    @functools.cached_property
    def patch_columns(self) -> Tensor:
        patches_W = self.places.query_patch.sum(1)
        return (self.value * patches_W.double())[None, :, None, None]

    def at_pairs(self, at: Tensor, but: Tensor | None = None) -> Tensor:
        count = torch.full((1, 1), len(at), dtype=torch.float64, device=self.device)
        if but is not None:
            window, key = self.places.window_and_key(at)
            count = (~but[:, window, key]).sum(-1, keepdim=True).double()
        return self.value * count


def pairs_of(piece: Piece) -> Seen:
    """One for each pair that may be seen, of one head; of one image, or all."""
    places = piece.places
    if places.start is not None:
        return Same(1.0, places)
    return Seen(
        places.pairs.double()[None, :, None].expand(len(piece.attn), -1, -1, -1, -1), places
    )


def kinds_in(piece: Piece, batch: HeadBatch, threshold: float) -> Kinds:
    """The kinds of a piece, made once for all measures that look at it."""
    return piece.share(("kinds", threshold), lambda: Kinds(piece, batch, threshold))


def rows_of(piece: Piece) -> Seen:
    """The rows of a piece, summed once for all measures that look at it."""
    return piece.share("rows", lambda: Seen(piece.rows, piece.places, piece.columns))


def even_of(piece: Piece) -> Seen:
    """Even attention of one head."""

    def even() -> Seen:
        if piece.places.start is not None:
            return Same(1 / piece.places.token.shape[1], piece.places)
        even_1W1QK = even_over(piece.places.pairs)[None, :, None]
        return Seen(even_1W1QK.expand(len(piece.attn), -1, -1, -1, -1), piece.places)

    return piece.share("even", even)


def _of_keys(site: HeadSite, places: Places) -> dict[str, Tensor]:
    """(1, W, K) bool, by kind."""
    last = torch.tensor(site.token_grid, device=places.token.device) - 1
    rim_WK = ((places.cell == 0) | (places.cell == last)).any(-1) & places.patch
    first_WK = places.is_class if site.class_token else torch.zeros_like(places.patch)
    register_WK = (places.token >= 0) & ~places.patch & ~first_WK
    return {"cls": first_WK[None], "registers": register_WK[None], "border": rim_WK[None]}


class _Pairs:
    """Pairs of places: window, query and key (3, N), ordered by the query."""

    def __init__(self, pairs: Tensor, queries: int, keys: int) -> None:
        self.pairs = pairs[:, pairs[1].argsort(stable=True)]
        self.ends = torch.bincount(self.pairs[1], minlength=queries).cumsum(0).tolist()
        self.keys, self.one = keys, not self.pairs[0].any()
        self.at = _numbers(self.pairs, queries, keys)

    def of(self, queries: Tensor | None) -> Tensor:
        """(N,) numbers among W x Q x K of the pairs of some queries, which follow one another."""
        if queries is None:
            return self.at
        first, last = int(queries[0]), int(queries[-1])
        some = slice(self.ends[first - 1] if first else 0, self.ends[last])
        if self.one:
            return self.at[some] - first * self.keys
        window, query, key = self.pairs[:, some]
        return _numbers((window, query - first, key), len(queries), self.keys)


def _numbers(pairs: Sequence[Tensor] | Tensor, queries: int, keys: int) -> Tensor:
    window, query, key = pairs
    return (window * queries + query) * keys + key


@functools.lru_cache(maxsize=64)
def _lists(site: HeadSite, device: torch.device) -> dict[str, _Pairs]:
    """Pairs of each kind that depends on the query."""
    with torch.inference_mode(False):
        places, found = places_of(site, device), dict[str, list[Tensor]]()
        for part in places.parts():
            for name, table in _of_pairs(part).items():
                pairs = torch.stack(table.nonzero(as_tuple=True))
                pairs[1] += part.queries[0]  # type: ignore[index]
                found.setdefault(name, []).append(pairs)
        count = places.token.shape[1]
        return {name: _Pairs(torch.cat(parts, 1), count, count) for name, parts in found.items()}


def _of_pairs(places: Places) -> dict[str, Tensor]:
    """(W, Q, K) bool, by kind."""
    patches = places.patch_pairs
    step_down, step_across = places.steps.unbind(-1)
    down, across = step_down.abs(), step_across.abs()
    directions = {
        n: patches & (step_down == y) & (step_across == x) for n, (y, x) in DIRECTIONS.items()
    }
    return {
        "self": places.pairs & places.itself,
        "neighbours": patches & (down + across == 1),
        **directions,
        "same_row": patches & (down == 0) & (across > 0),
        "same_column": patches & (across == 0) & (down > 0),
    }


def _loud(batch: HeadBatch, block: int, prefix: int, threshold: float) -> Tensor:
    """(B, T) bool: tokens that are ``high_norm`` before a block; none of the first ``prefix``."""
    assert batch.stream is not None  # Kinds looked
    return pad(high_norm(batch.stream[block].before[:, prefix:], threshold), (prefix, 0))


def high_norm(patches_bTC: Tensor, threshold: float = 3.0) -> Tensor:
    """(b, T) bool: patch tokens whose norm lies so many standard deviations above the mean of their image's."""
    norm_bT = patches_bTC.double().norm(dim=-1)
    return norm_bT - norm_bT.mean(1, keepdim=True) > threshold * norm_bT.std(
        1, correction=0, keepdim=True
    )
