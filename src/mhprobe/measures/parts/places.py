"""Places of tokens in an attention matrix, and the matrix itself, a few images at a time.

In a shifted Swin window places from opposite sides of the image stand next to each other and may
not attend to each other; some places are padding. Here that becomes, once per site, a few boolean
tables over (window, query, key): every statistic of attention is a product with a table and a sum.
timm's Swin does not mask its padding keys, so the rest of a row sums to less than 1. ``shares``
divides by that sum; columns called "raw" do not.

Texts of a batch are padded to one length. Measures that need no grid see each text as a window of
its own: W = b texts of one "image". Padding is what gets exactly no attention from any query of any
head.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Need, Weights
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.image_sums import MeanOverImages

# float64 numbers in a piece of attention, whatever the batch size
# 8 MiB: less takes more calls, and temporaries of 64 MiB cost page faults and three times the time
_CPU_PIECE = 2**20
_CACHED = 2**17  # numbers that stay in a core's cache, from one step of a sum to the next
_GPU_PIECE = 2**24  # 128 MiB: few launches
_KEPT = 2**21  # pairs of places whose tables stay for the next block: 16 MiB of distances

T = TypeVar("T")


class Places:
    """The tables of one site, or of some of its queries (``of``); tables over pairs come to be when they are read.

    token: (W, K) index into T, prefix first, -1 for padding. cell: (W, K, 2) int64 row and column
    of the grid, 0 where no grid token stands. patch: (W, K) bool, a grid token. These are of keys;
    query_token, query_cell, query_patch: the same of queries, (W, Q). pairs: (W, Q, K) bool, may
    attend to each other. patch_pairs: (W, Q, K) bool, such pairs of grid tokens. distance: (W, Q,
    K) float64 in input pixels, 0 but for pairs of grid tokens.
    """

    def __init__(
        self, token: Tensor, cell: Tensor, patch: Tensor, region: Tensor, pixels: Tensor
    ) -> None:
        """Keep what the tables are made of.

        region: (W, K) numbers, NaN for padding; equal ones attend to each other. pixels: (2,).
        """
        self.token, self.cell, self.patch = token, cell, patch
        self.region, self.pixels = region, pixels
        self.queries: Tensor | None = None
        self.all = self  # the tables of all queries

    def of(self, queries: Tensor) -> "Places":
        """Return the tables of some queries, places of a window: (q,)."""
        some = Places(self.token, self.cell, self.patch, self.region, self.pixels)
        some.queries, some.all = queries, self.all
        return some

    def parts(self) -> Iterator["Places"]:
        """The same tables of a few queries at a time."""
        windows, keys = self.token.shape
        for some in torch.arange(keys, device=self.token.device).split(
            max(1, _CPU_PIECE // (windows * keys))
        ):
            yield self.of(some)

    def _of_queries(self, values: Tensor) -> Tensor:
        return values if self.queries is None else values[:, self.queries]

    @functools.cached_property
    def query_token(self) -> Tensor:
        return self._of_queries(self.token)

    @functools.cached_property
    def query_cell(self) -> Tensor:
        return self._of_queries(self.cell)

    @functools.cached_property
    def query_patch(self) -> Tensor:
        return self._of_queries(self.patch)

    @functools.cached_property
    def start(self) -> int | None:
        """Number of places before the patches, if every place may attend to every place; else None."""
        if self.all is not self:
            return self.all.start
        start = int((~self.patch[0]).sum())
        behind = self.patch[:, start:].all() and not self.patch[:, :start].any()
        return start if behind and (self.region == self.region[:, :1]).all() else None

    @functools.cached_property
    def pairs(self) -> Tensor:
        return self._of_queries(self.region)[:, :, None] == self.region[:, None]

    @functools.cached_property
    def patch_pairs(self) -> Tensor:
        return self.pairs & self.query_patch[:, :, None] & self.patch[:, None]

    @functools.cached_property
    def distance(self) -> Tensor:
        down, across = self.steps.unbind(-1)
        return torch.hypot(down * self.pixels[0], across * self.pixels[1]) * self.patch_pairs

    @functools.cached_property
    def itself(self) -> Tensor:
        """(Q, K) bool: the key is the query."""
        place_K = torch.arange(self.token.shape[1], device=self.token.device)
        return (place_K if self.queries is None else self.queries)[:, None] == place_K

    @functools.cached_property
    def is_class(self) -> Tensor:
        """(W, K) bool: the first token, of a site that has a class token."""
        return (self.token == 0) & ~self.patch

    @functools.cached_property
    def class_queries(self) -> Tensor:
        """(W, Q) bool: the same of queries."""
        return self._of_queries(self.is_class)

    @functools.cached_property
    def patch_keys(self) -> Tensor:
        """(W, Q, K) bool: the key is a patch that the query, of any kind, may attend to."""
        return self.pairs & self.patch[:, None]

    def window_and_key(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Window and key of pairs (N,), numbers among W x Q x K."""
        queries, keys = self.query_token.shape[1], self.token.shape[1]
        return at // (queries * keys), at % keys

    @property
    def steps(self) -> Tensor:
        """(W, Q, K, 2) rows and columns from the query to the key; any numbers where no grid token stands."""
        return self.cell[:, None] - self.query_cell[:, :, None]

    def offsets(self, reach: tuple[int, int]) -> Tensor:
        """(W, Q, K) number of each step among those of ``reach_of``; any number where no grid token stands."""
        return _numbered(self.steps, reach)

    def offset(self, window: Tensor, query: Tensor, key: Tensor, reach: tuple[int, int]) -> Tensor:
        """(N,) entries of ``offsets``."""
        return _numbered(self.cell[window, key] - self.query_cell[window, query], reach)


def _numbered(steps: Tensor, reach: tuple[int, int]) -> Tensor:
    down, across = steps.unbind(-1)
    return (down + reach[0] // 2) * reach[1] + across + reach[1] // 2


def places_of(site: HeadSite, device: torch.device) -> Places:
    """The tables of a site, made once for all sites with the same places."""
    return _places_of(places_alone(site), device)


def places_alone(site: HeadSite) -> HeadSite:
    """Return a site that is equal for all sites with the same places."""
    return replace(site, name="", stage=0, block=0, num_heads=1, head_dim=1, pooled=False)


@functools.lru_cache(maxsize=64)
def _places_of(site: HeadSite, device: torch.device) -> Places:
    with torch.inference_mode(False):  # cached: must be usable outside too
        token, region = site.places(), site.regions()
        patch = token >= site.prefix_tokens
        raster = (token - site.prefix_tokens).clamp(min=0)
        cell = torch.stack([raster // site.token_grid[1], raster % site.token_grid[1]], -1)
        pixels = torch.tensor(site.pixels, dtype=torch.float64)
        return Places(*(table.to(device) for table in (token, cell, patch, region, pixels)))


def reach_of(site: HeadSite) -> tuple[int, int]:
    """Offsets (Y, X) between patches that may attend to each other; the middle is the query.

    More if windows wrap.
    """
    return _reach_of(places_alone(site))


@functools.lru_cache(maxsize=64)
def _reach_of(site: HeadSite) -> tuple[int, int]:
    if site.windows is None:
        height, width = site.token_grid
        return 2 * height - 1, 2 * width - 1
    places = places_of(site, torch.device("cpu"))
    down, across = (
        (places.steps.abs() * places.patch_pairs[..., None]).flatten(0, 2).amax(0).tolist()
    )
    return 2 * down + 1, 2 * across + 1


def places_in(site: HeadSite, attn: Tensor) -> Places:
    """The tables of a site; for a text site those of the texts of ``attn`` (b, 1, H, T, T): a window each, no grid."""
    if not site.line:
        return places_of(site, attn.device)
    words_bT = words_of(attn)
    token = (
        torch.arange(words_bT.shape[1], device=attn.device)
        .expand(words_bT.shape)
        .masked_fill(~words_bT, -1)
    )
    region = torch.zeros_like(token).double().masked_fill(~words_bT, torch.nan)
    cell = token.new_zeros(*token.shape, 2)
    return Places(token, cell, words_bT, region, torch.zeros(2).to(region))


def words_of(attn: Tensor) -> Tensor:
    """(b, T) bool of texts' attention (b, 1, H, T, T): a word, no padding."""
    return (attn > 0).any(3).any(2)[:, 0]


def real_tokens(name: str, batch: HeadBatch, number: int, site: HeadSite) -> Tensor:
    """(V, T) float64 for the valid images: 1 for a token, 0 for the padding of a text.

    name: of the measure.
    """
    if site.line:
        attention = SiteAttention(batch.weights_of(number, name), len(batch.valid))
        (valid,) = batch.valid.nonzero(as_tuple=True)
        return words_of(attention.at(valid)).double()
    return torch.ones_like(batch.z[number][batch.valid, :, 0, 0], dtype=torch.float64)


class SiteAttention:
    """Attention of one site on the images of a batch: windows are apart from images.

    shape: (B, W, H, Q, K). device: where it is.
    """

    def __init__(self, weights: Weights, images: int) -> None:
        rows, *others = weights.shape
        self.weights, self.device = weights, weights.device
        self.shape = (images, rows // images, *others)

    def __len__(self) -> int:
        return self.shape[0]

    def wide(self) -> "SiteAttention":
        """Return the same attention, of queries and keys in float64."""
        return SiteAttention(self.weights.wide(torch.float64), len(self))

    def of(self, images: Tensor) -> "SiteAttention":
        """Return the attention of some images (b,), in any order."""
        windows = torch.arange(self.shape[1], device=images.device)
        rows = (images[:, None] * self.shape[1] + windows).flatten().to(self.device)
        parts = [part[rows] for part in self.weights.parts()]
        return SiteAttention(self.weights.of(parts), len(images))

    def all(self, queries: Tensor | None = None) -> Tensor:
        """(B, W, H, q, K) as of ``at``, of all images."""
        return self.at(torch.arange(len(self), device=self.device), queries)

    def at(self, images: Tensor, queries: Tensor | None = None) -> Tensor:
        """(b, W, H, q, K) float64 of images (b,) and queries (q,), ascending; None for all queries."""
        return self._read(self.weights.at, images, queries)

    def slopes_at(self, images: Tensor, queries: Tensor | None = None) -> Tensor:
        """(b, W, H, q, K) float64 slopes along it."""
        return self._read(self.weights.slopes_at, images, queries)

    def _read(self, read: Callable[..., Tensor], images: Tensor, queries: Tensor | None) -> Tensor:
        windows, device = self.shape[1], self.device
        rows = (images[:, None] * windows + torch.arange(windows, device=images.device)).flatten()
        if queries is None:
            queries = torch.arange(self.shape[3], device=device)
        found = read(rows.to(device), queries, torch.float64)
        return found.unflatten(0, (len(images), windows))


@dataclass(eq=False)
class Piece:
    """The attention of one site on some valid images of a batch, and there of some queries.

    number, span: of the site, and its heads. images: (b,) indices in the batch. counted: the same
    among its valid images. attn: (b, W, H, Q, K) float64; of texts (1, b, ...). places: of these
    queries. give_slopes: for ``slopes``. ends: True behind the last queries of the images.
    """

    number: int
    span: slice
    site: HeadSite
    places: Places
    images: Tensor
    counted: Tensor
    attn: Tensor
    give_slopes: Callable[[], Tensor] | None = None
    ends: bool = True
    kept: dict[Any, Any] = field(default_factory=dict)

    def share(self, key: Any, make: Callable[[], T]) -> T:
        """Return ``make()``, made once for all measures that look at the piece."""
        if key not in self.kept:
            self.kept[key] = make()
        made: T = self.kept[key]
        return made

    @functools.cached_property
    def slopes(self) -> Tensor:
        """(b, W, H, Q, K) slopes along ``attn``; of texts (1, b, ...)."""
        assert self.give_slopes is not None  # of a batch
        slopes = self.give_slopes()
        return slopes.transpose(0, 1) if self.site.line else slopes

    @functools.cached_property
    def rows(self) -> Tensor:
        """``shares`` over all keys that a query may attend to."""
        if self.places.start is None:
            return shares(self.attn, self.places.pairs)
        return _of_one(self.attn)

    @functools.cached_property
    def columns(self) -> Tensor:
        """(b, W, H, K) sum of ``rows`` over queries."""
        return self.rows.sum(3)

    @functools.cached_property
    def patch_columns(self) -> Tensor:
        """(b, W, H, K) sum of ``attn`` over queries that are patches."""
        asking_WQ = self.places.query_patch
        if asking_WQ.all():
            return self.attn.sum(3)
        return torch.einsum("bwhqk,wq->bwhk", self.attn, asking_WQ.to(self.attn.dtype))

    @functools.cached_property
    def patch_rows(self) -> Tensor:
        """``shares`` over patches, of patches."""
        return shares(self.attn, self.places.patch_pairs)

    @functools.cached_property
    def on_patches(self) -> Tensor:
        """(b, W, H, Q) attention to patches, of all queries."""
        start = self.places.start
        if start is not None:
            return self.attn[..., start:].sum(-1)
        return torch.einsum("bwhqk,wqk->bwhq", self.attn, self.places.patch_keys.double())

    @functools.cached_property
    def x_ln_x(self) -> Tensor:
        """(b, W, H, Q) sum over keys of x ln x of ``rows``; 0 ln 0 is 0."""
        return sum_x_ln_x(self.rows)

    @functools.cached_property
    def best(self) -> "LargestKeys":
        """Patches with the largest weight of each query."""
        start = self.places.start
        if start is not None:
            broken = 0 * self.attn[..., :start].sum(-1)  # NaN on a prefix token is one of the row
            return LargestKeys.among(self.attn[..., start:], start, broken=broken)
        keys = self.places.patch_keys
        return LargestKeys.among(_without(self.attn, keys), 0, keys)

    @functools.cached_property
    def favourites(self) -> "LargestKeys":
        """The same, of patches alone; NaN stays."""
        best = self.best
        return best.where(self.places.query_patch[best.window, best.query] | best.share.isnan())

    @functools.cached_property
    def other_favourites(self) -> "LargestKeys":
        """Patches with the largest weight of each patch, that one left out."""
        first, places = self.favourites, self.places
        itself = first.query if places.queries is None else places.queries[first.query]
        row = first.row(self.attn.shape)
        again = row[first.key == itself].unique()  # what is left of these is looked at again
        if not len(again):
            return first
        image, window, head, query = at_row(again, self.attn.shape)
        keys = (places.patch_keys & ~places.itself)[window, query]
        rest = _without(self.attn[image, window, head, query], keys, 0)
        second = LargestKeys.among(rest[None, None, None], 0, keys[None])
        back = second.query
        second = second._replace(
            image=image[back], window=window[back], head=head[back], query=query[back]
        )
        kept = first.where(~torch.isin(row, again))
        return LargestKeys(
            kept.top, *(torch.cat(both) for both in zip(kept[1:], second[1:], strict=True))
        )

    def of_images(self, values: Tensor, queries: Tensor) -> Tensor:
        """(b, H) sum over windows and those queries (W, Q) bool of (b, W, H, Q) values.

        NaN anywhere stays NaN.
        """
        there = values * queries[:, None]  # a product: NaN is not masked away
        return there.sum((0, 3) if self.site.line else (1, 3))  # a text is a window

    def counts(self, queries: Tensor) -> Tensor:
        """(b, 1), or (1, 1) if all images have as many: number of queries (W, Q) bool of an image."""
        return (queries.sum(1) if self.site.line else queries.sum().view(1)).double()[:, None]


class OfTokens(Measure):
    """Base of measures that are means over tokens.

    Of texts they need attention, which tells what is padding.
    """

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        if any(site.line for site in layout.sites):
            self.needs = self.needs | {"attn"}


class OfAttention(Measure):
    """Base of measures of attention. It comes in pieces: some images, and of a large grid some of their queries.

    texts: True if it needs no grid and counts queries; others refuse texts.
    """

    needs: frozenset[Need] = frozenset({"attn"})
    by_rows = True
    of_sites: bool = True  # that ``look`` takes one after the other
    texts: ClassVar[bool] = False
    empty = "the network has no class token"  # see of_class

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self.partial: tuple[Tensor, ...] = ()  # sums over the queries so far of a piece's images

    def add(self, batch: HeadBatch) -> None:
        self.begin(batch)
        if self.of_sites:
            for piece in attention_in_pieces(self.name, self.layout.of("head"), batch, self.texts):
                self.look(piece, batch)
        self.finish_batch(batch)

    def begin(self, batch: HeadBatch) -> None:
        """Check a batch, before its pieces. UserError if it lacks something."""

    @abstractmethod
    def look(self, piece: Piece, batch: HeadBatch) -> None:
        """Add some images' attention in one site to the sums.

        What is no sum over queries, as a square, waits for all of them: see ``whole``.
        """

    def finish_batch(self, batch: HeadBatch) -> None:
        """Add what is no attention to the sums, behind the pieces of a batch."""

    def reset(self) -> None:
        super().reset()
        self.partial = ()

    def whole(self, piece: Piece, *parts: Tensor) -> tuple[Tensor, ...] | None:
        """Sums of each part over all queries of the piece's images; None before the last of them.

        parts: of this piece's queries, the same number of them each time.
        """
        sums = parts
        if self.partial:
            sums = tuple(before + part for before, part in zip(self.partial, parts, strict=True))
        self.partial = () if piece.ends else sums
        return sums if piece.ends else None

    def per_site(self, fact: Callable[[HeadSite, Places], Tensor | float]) -> Tensor:
        """(A,) float64: a fact about the places of each site, for each of its heads."""
        known: dict[HeadSite, Tensor] = {}
        for site in map(places_alone, self.layout.sites):
            if site not in known:
                value = fact(site, places_of(site, self.device))
                known[site] = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        return torch.cat(
            [known[places_alone(site)].expand(site.num_heads) for site in self.layout.sites]
        )

    @property
    def patch_queries(self) -> Tensor:
        """(A,) number of patches of an image."""
        return self.per_site(lambda site, places: places.patch.sum())

    def of_class(self, total: Tensor) -> Tensor:
        """Mean over images of (A,) or (A, K) sums over class tokens' rows; NaN for sites without a class token."""
        return where_site(self.layout, total / self.images, lambda site: site.class_token)


def joins(measure: OfAttention) -> bool:
    """Return True if a measure may share its pieces with others: of a grid, and with no way of its own."""
    own = type(measure)
    plain = own.add is OfAttention.add and own.update is Measure.update
    return measure.of_sites and plain and not any(site.line for site in measure.layout.sites)


def _look(piece: Piece, measure: OfAttention, batch: HeadBatch) -> None:
    measure.look(piece, batch)


def update_together(
    shown: Mapping[str, tuple[OfAttention, HeadBatch]],
) -> dict[str, UserError]:
    """Update measures that ``joins`` allows; each row of attention is made once for all of them.

    shown: by key a measure and its batch; all batches are of the same pass. Returns the UserErrors.
    """
    refused: dict[str, UserError] = {}
    if not shown:
        return refused

    def each(step: Callable[[OfAttention, HeadBatch], None]) -> None:
        for key, (item, batch) in shown.items():
            if key not in refused:
                try:
                    step(item, batch)
                except UserError as error:
                    refused[key] = error

    first, batch = next(iter(shown.values()))
    if batch.valid.any():
        with torch.no_grad(), torch.autocast(batch.valid.device.type, enabled=False):
            each(lambda item, batch: item.begin(batch))
            try:
                for piece in attention_in_pieces(first.name, first.layout.of("head"), batch):
                    each(functools.partial(_look, piece))
            except UserError as error:
                return dict.fromkeys(shown, error)
            each(lambda item, batch: item.finish_batch(batch))
    for item, batch in shown.values():
        item.images += batch.valid.sum()
        item.count_update()
    return refused


class MeanOfAttention(OfAttention, MeanOverImages):
    """Base of measures of attention whose value is made of sums over images."""

    def add_images_of(self, piece: Piece, *numbers: Tensor) -> None:
        """Add the images of a piece, as of ``add_images``; once for each piece, which has a part of each number."""
        if (sums := self.whole(piece, *numbers)) is not None:
            self.add_images(piece.span, *sums)


def attention_in_pieces(
    name: str, layout: HeadLayout, batch: HeadBatch, texts: bool = False, whole: bool = False
) -> Iterator[Piece]:
    """All valid images' attention of all sites, in pieces of bounded size.

    name, texts: of the measure that asks. whole: True for all queries of an image in one piece.
    """
    order = batch.valid.cumsum(0) - 1
    tables = _Tables()
    for number, site in enumerate(layout.sites):
        attn, span = attention_of(name, layout, batch, number, texts).wide(), layout.span(number)
        for images in chunks(batch.valid, [attn]):
            counted = order[images]
            if site.line or whole or not (split := queries_of([attn])):
                some, slopes = attn.at(images), functools.partial(attn.slopes_at, images)
                places = places_in(site, some)
                seen = some.transpose(0, 1) if site.line else some
                yield Piece(number, span, site, places, images, counted, seen, slopes)
                continue
            for queries in split:
                slopes = functools.partial(attn.slopes_at, images, queries)
                some, ends = attn.at(images, queries), queries is split[-1]
                part = tables.of(site, queries)
                yield Piece(number, span, site, part, images, counted, some, slopes, ends)


class _Tables:
    """The tables of some queries, kept for the next site with the same places if they are small together."""

    def __init__(self) -> None:
        self.site: HeadSite | None = None
        self.kept: dict[tuple[int, int], Places] = {}

    def of(self, site: HeadSite, queries: Tensor) -> Places:
        alone, places = places_alone(site), places_of(site, queries.device)
        if alone != self.site:
            self.site, self.kept = alone, {}
        at = int(queries[0]), len(queries)
        if at in self.kept:
            return self.kept[at]
        windows, keys = places.token.shape
        if windows * keys * keys > _KEPT:
            return places.of(queries)
        return self.kept.setdefault(at, places.of(queries))


def attention_of(
    name: str, layout: HeadLayout, batch: HeadBatch, number: int, texts: bool = False
) -> SiteAttention:
    """Attention of one site, as recorded; of texts (B, 1, H, T, T), if ``texts`` allows them.

    Raises UserError if it is missing or does not fit the site's places.
    """
    site = layout.sites[number]
    attn = SiteAttention(batch.weights_of(number, name), len(batch.valid))
    if not (texts and site.line):
        site.refuse_other_size(attn.shape[1] * attn.shape[-1], name)
    return attn


def chunks(valid_B: Tensor, attn: Sequence[SiteAttention]) -> tuple[Tensor, ...]:
    """Indices of the valid images, in groups whose attention, of some sites, takes bounded memory in float64."""
    (valid,) = valid_B.nonzero(as_tuple=True)
    return valid.split(max(1, _most(valid) // max(1, _size(attn)))) if len(valid) else ()


def queries_of(attn: Sequence[SiteAttention]) -> tuple[Tensor, ...]:
    """Queries of an image, in groups of bounded memory, as of ``chunks``; () if all of them are one."""
    queries = attn[0].shape[3]
    every = torch.arange(queries, device=attn[0].device)
    size, most = _size(attn), _most(every)
    return () if size <= most else every.split(max(1, most * queries // size))


def _most(values: Tensor) -> int:
    return _CPU_PIECE if values.device.type == "cpu" else _GPU_PIECE


def in_cache(values: Tensor) -> int:
    """Return how many numbers a sum should take at a time, on the device of ``values``."""
    return _CACHED if values.device.type == "cpu" else _GPU_PIECE


def _size(attn: Sequence[SiteAttention]) -> int:
    return sum(math.prod(weights.shape[1:]) for weights in attn)


class LargestKeys(NamedTuple):
    """Keys with the largest weight of a query's row.

    top: (b, W, H, Q) that weight, of a row without keys at most 0. The others are (N,): where it is
    found, N places or more if several keys of a row are equal. share: of a row, 1/n at n equal
    keys; NaN in a row with NaN.
    """

    top: Tensor
    image: Tensor
    window: Tensor
    head: Tensor
    query: Tensor
    key: Tensor
    share: Tensor

    @staticmethod
    def among(
        values: Tensor, start: int, keys: Tensor | None = None, broken: Tensor | float = 0.0
    ) -> "LargestKeys":
        """Best of (b, W, H, Q, K) values of keys from place ``start`` on.

        keys: (W, Q, K) bool; others are no place, and their values are less. broken: (b, W, H, Q)
        NaN for further rows with NaN.
        """
        top = values.amax(-1) + broken
        found = values == top[..., None]
        if top.isnan().any():
            found = found | top.isnan()[..., None]
        if keys is not None:
            found = found & keys[:, None]
        (flat,) = found.flatten().nonzero(as_tuple=True)
        row, key = flat // values.shape[-1], flat % values.shape[-1]
        share = (top.flatten() * 0 + 1)[row] / torch.bincount(row, minlength=top.numel())[row]
        return LargestKeys(top, *at_row(row, values.shape), key + start, share)

    def where(self, kept: Tensor) -> "LargestKeys":
        """Return those places that are True in ``kept`` (N,)."""
        return LargestKeys(self.top, *(part[kept] for part in self[1:]))

    def row(self, shape: Sequence[int]) -> Tensor:
        """(N,) number of the row among those of attention of a shape (b, W, H, Q, K)."""
        _, windows, heads, queries, _ = shape
        window = self.image * windows + self.window
        return (window * heads + self.head) * queries + self.query

    def met(self, true: Tensor, shape: Sequence[int]) -> Tensor:
        """(b, W, H, Q) sum of the shares of a row where ``true`` (N,) holds."""
        met = self.top.new_zeros(self.top.numel())
        return met.index_add_(0, self.row(shape), self.share * true).view(self.top.shape)


def at_row(row: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Image, window, head and query of rows (N,) of attention of a shape (b, W, H, Q, K)."""
    _, windows, heads, queries, _ = shape
    before, query = row // queries, row % queries
    window = before // heads
    return window // windows, window % windows, before % heads, query


def _without(attn: Tensor, keys: Tensor, heads: int = 1) -> Tensor:
    """(b, W, H, Q, K) attention, -1 where ``keys`` (W, Q, K) has no key; NaN stays."""
    keys = keys[:, None] if heads else keys
    return attn * keys + (keys.int() - 1)


def sum_x_ln_x(rows: Tensor) -> Tensor:
    """(...) sum over the last dimension of x ln x; 0 ln 0 is 0, and 1e-300 changes no other x."""
    flat = rows.flatten(0, -2)
    some = max(1, in_cache(rows) // max(1, rows.shape[-1]))
    sums = [(part + 1e-300).log_().mul_(part).sum(-1) for part in flat.split(some)]
    return torch.cat(sums).view(rows.shape[:-1])


def _of_one(counted: Tensor) -> Tensor:
    return counted / counted.sum(-1, keepdim=True).clamp(min=torch.finfo(counted.dtype).tiny)


def shares(attn: Tensor, keys: Tensor) -> Tensor:
    """(b, W, H, Q, K) each row's distribution over ``keys`` (W, Q, K) bool; 0 in a row that gives them nothing."""
    return _of_one(attn * keys[:, None])


def of_largest(attn: Tensor, keys: Tensor) -> Tensor:
    """(b, W, H, Q, K) float64: 1 at the key, of ``keys`` (W, Q, K) bool, with a row's largest weight; 1/n at n equals.

    0 elsewhere, and in a row without keys; NaN in a row with NaN.
    """
    row = _without(attn, keys)
    top = (row == row.amax(-1, keepdim=True)).double()
    return top / top.sum(-1, keepdim=True) * keys[:, None]


def even_over(pairs: Tensor) -> Tensor:
    """(W, Q, K) float64 attention that is spread evenly over the keys in ``pairs`` (W, Q, K) bool, 0 elsewhere."""
    return pairs / pairs.sum(-1, keepdim=True).clamp(min=1).double()


def over_queries(values: Tensor, queries: Tensor) -> Tensor:
    """(H,) sum over images, windows and those queries (W, Q) bool of (b, W, H, Q) values.

    NaN anywhere stays NaN.
    """
    return (values * queries[:, None]).sum((0, 1, 3))


def of_pairs(values: Tensor, pairs: Tensor) -> Tensor:
    """(b, H) sum of (b, W, H, Q, K) values over ``pairs`` (1 or b, W, Q, K) bool, image by image."""
    return torch.einsum("bwhqk,bwqk->bh", values, pairs.to(values.dtype))


def where_site(layout: HeadLayout, values_A: Tensor, has: Callable[[HeadSite], bool]) -> Tensor:
    """(A,) or (A, K) values, NaN for the heads of sites for which ``has`` is False."""
    has_A = torch.tensor([has(site) for _, _, site in layout], device=values_A.device)
    return torch.where(has_A.view(-1, *[1] * (values_A.dim() - 1)), values_A, torch.nan)
