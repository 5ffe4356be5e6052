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
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Need
from mhprobe.measures.base import Measure

# float64 numbers in a piece of attention, whatever the batch size
_CPU_PIECE = (
    2**18
)  # 2 MiB stay in the cache; temporaries of 64 MiB cost page faults and three times the time
_GPU_PIECE = 2**24  # 128 MiB: few launches


class Places(NamedTuple):
    """The tables of one site.

    token: (W, K) index into T, prefix first, -1 for padding. cell: (W, K, 2) int64 row and column
    of the grid, 0 where no grid token stands. patch: (W, K) bool, a grid token. pairs: (W, Q, K)
    bool, may attend to each other.
    patch_pairs: (W, Q, K) bool, such pairs of grid tokens. distance: (W, Q, K) float64 in input
    pixels, 0 but for pairs of grid tokens.
    """

    token: Tensor
    cell: Tensor
    patch: Tensor
    pairs: Tensor
    patch_pairs: Tensor
    distance: Tensor

    @property
    def is_class(self) -> Tensor:
        """(W, K) bool: the first token, of a site that has a class token."""
        return (self.token == 0) & ~self.patch

    @property
    def steps(self) -> Tensor:
        """(W, Q, K, 2) rows and columns from the query to the key; any numbers where no grid token stands."""
        return self.cell[:, None] - self.cell[:, :, None]

    def offsets(self, reach: tuple[int, int]) -> Tensor:
        """(W, Q, K) number of each step among those of ``reach_of``; any number where no grid token stands."""
        down, across = self.steps.unbind(-1)
        return (down + reach[0] // 2) * reach[1] + across + reach[1] // 2


@functools.lru_cache(maxsize=256)
def places_of(site: HeadSite, device: torch.device) -> Places:
    """The tables of a site, made once per site and device."""
    with torch.inference_mode(False):  # cached: must be usable outside too
        token, pairs = site.places(), site.support()
        patch = token >= site.prefix_tokens
        raster = (token - site.prefix_tokens).clamp(min=0)
        cell = torch.stack([raster // site.token_grid[1], raster % site.token_grid[1]], -1)
        patch_pairs = pairs & patch[:, :, None] & patch[:, None, :]
        steps = (cell[:, :, None] - cell[:, None, :]).double() * torch.tensor(
            site.pixels, dtype=torch.float64
        )
        distance = steps.norm(dim=-1) * patch_pairs
        return Places(
            *(table.to(device) for table in (token, cell, patch, pairs, patch_pairs, distance))
        )


@functools.lru_cache(maxsize=256)
def reach_of(site: HeadSite) -> tuple[int, int]:
    """Offsets (Y, X) between patches that may attend to each other; the middle is the query.

    More if windows wrap.
    """
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
    cell, pairs = token.new_zeros(*token.shape, 2), words_bT[:, :, None] & words_bT[:, None]
    return Places(token, cell, words_bT, pairs, pairs, pairs.new_zeros(pairs.shape).double())


def words_of(attn: Tensor) -> Tensor:
    """(b, T) bool of texts' attention (b, 1, H, T, T): a word, no padding."""
    return (attn > 0).any(3).any(2)[:, 0]


def real_tokens(name: str, batch: HeadBatch, number: int, site: HeadSite) -> Tensor:
    """(V, T) float64 for the valid images: 1 for a token, 0 for the padding of a text.

    name: of the measure.
    """
    if site.line:
        return words_of(batch.need("attn", name)[number][batch.valid]).double()
    return torch.ones_like(batch.z[number][batch.valid, :, 0, 0], dtype=torch.float64)


class Piece(NamedTuple):
    """The attention of one site on some valid images of a batch.

    number, span: of the site, and its heads. images: (b,) indices in the batch. counted: the same
    among its valid images. attn: (b, W, H, Q, K) float64; of texts (1, b, ...).
    """

    number: int
    span: slice
    site: HeadSite
    places: Places
    images: Tensor
    counted: Tensor
    attn: Tensor

    def of_images(self, values: Tensor, queries: Tensor) -> Tensor:
        """(b, H) sum over windows and those queries (W, Q) bool of (b, W, H, Q) values.

        NaN anywhere stays NaN.
        """
        path = "bwhq,wq->wh" if self.site.line else "bwhq,wq->bh"  # a text is a window
        return torch.einsum(path, values, queries.to(values.dtype))

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
    """Base of measures of attention.

    texts: True if it needs no grid and counts queries; others refuse texts.
    """

    needs: frozenset[Need] = frozenset({"attn"})
    texts: ClassVar[bool] = False
    empty = "the network has no class token"  # see of_class

    def add(self, batch: HeadBatch) -> None:
        for piece in attention(self.name, self.layout.of("head"), batch, self.texts):
            self.look(piece, batch)

    @abstractmethod
    def look(self, piece: Piece, batch: HeadBatch) -> None:
        """Add some images' attention in one site to the sums."""

    def per_site(self, fact: Callable[[HeadSite, Places], Tensor | float]) -> Tensor:
        """(A,) float64: a fact about each site, for each of its heads."""
        pairs = [(site, fact(site, places_of(site, self.device))) for site in self.layout.sites]
        facts = [
            torch.as_tensor(value, dtype=torch.float64, device=self.device) for _, value in pairs
        ]
        return torch.cat(
            [value.expand(site.num_heads) for (site, _), value in zip(pairs, facts, strict=True)]
        )

    @property
    def patch_queries(self) -> Tensor:
        """(A,) number of patches of an image."""
        return self.per_site(lambda site, places: places.patch.sum())

    def of_class(self, total: Tensor) -> Tensor:
        """Mean over images of (A,) or (A, K) sums over class tokens' rows; NaN for sites without a class token."""
        return where_site(self.layout, total / self.images, lambda site: site.class_token)


def attention(
    name: str, layout: HeadLayout, batch: HeadBatch, texts: bool = False
) -> Iterator[Piece]:
    """All valid images' attention of all sites, in pieces of bounded size. name, texts: of the measure that asks."""
    order = batch.valid.cumsum(0) - 1
    for number, site in enumerate(layout.sites):
        attn = attention_of(name, layout, batch, number, texts)
        for images in chunks(batch.valid, [attn]):
            some = attn[images].double()
            whole = some.transpose(0, 1) if site.line else some
            yield Piece(
                number,
                layout.span(number),
                site,
                places_in(site, some),
                images,
                order[images],
                whole,
            )


def attention_of(
    name: str, layout: HeadLayout, batch: HeadBatch, number: int, texts: bool = False
) -> Tensor:
    """(B, W, H, Q, K) of one site, as recorded; of texts (B, 1, H, T, T), if ``texts`` allows them.

    Raises UserError if it is missing or does not fit the site's places.
    """
    site, attn = layout.sites[number], batch.need("attn", name)[number]
    if texts and site.line:
        return attn
    site.refuse_other_size(attn.shape[1] * attn.shape[-1], name)
    return attn


def chunks(valid_B: Tensor, attn: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Indices of the valid images, in groups whose attention, of some sites, takes bounded memory in float64."""
    (valid,) = valid_B.nonzero(as_tuple=True)
    piece = _CPU_PIECE if valid.device.type == "cpu" else _GPU_PIECE
    elements = sum(weights.shape[1:].numel() for weights in attn)
    return valid.split(max(1, piece // max(1, elements))) if len(valid) else ()


def shares(attn: Tensor, keys: Tensor) -> Tensor:
    """(b, W, H, Q, K) each row's distribution over ``keys`` (W, Q, K) bool; 0 in a row that gives them nothing."""
    counted = attn * keys[:, None]
    return counted / counted.sum(-1, keepdim=True).clamp(min=torch.finfo(counted.dtype).tiny)


def of_largest(attn: Tensor, keys: Tensor) -> Tensor:
    """(b, W, H, Q, K) float64: 1 at the key, of ``keys`` (W, Q, K) bool, with a row's largest weight; 1/n at n equals.

    0 elsewhere, and in a row without keys; NaN in a row with NaN.
    """
    row = (
        attn * keys[:, None] + (keys.int() - 1)[:, None]
    )  # -1 where there is no key, and NaN stays
    top = (row == row.amax(-1, keepdim=True)).double()
    return top / top.sum(-1, keepdim=True) * keys[:, None]


def around_favourites(piece: Piece, group_b: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """(G, W, H, K, K) sums of rows by their argmax key, patches alone, by groups of images, and (W, H, K) their number.

    Of n keys that share a row's largest weight each has 1/n of it.
    """
    row_bWHQK = shares(piece.attn, piece.places.patch_pairs)
    windows, heads, count = row_bWHQK.shape[1:4]
    # a sparse product makes no copy of a row for each of its keys where all are equal
    share_NK, block = (
        of_largest(piece.attn, piece.places.patch_pairs).flatten(0, 3),
        windows * heads,
    )
    row, key = share_NK.nonzero(as_tuple=True)
    centre = (group_b[row // (block * count)] * block + row // count % block) * count + key
    places, size = torch.stack([centre, row]), (groups * block * count, len(share_NK))
    sums = torch.sparse_coo_tensor(places, share_NK[row, key], size, check_invariants=False)
    both = (sums @ pad(row_bWHQK.flatten(0, 3), (0, 1), value=1.0)).view(
        groups, windows, heads, count, -1
    )
    return both[..., :-1], both[..., -1].sum(0)  # the last column counts rows


def even_over(pairs: Tensor) -> Tensor:
    """(W, Q, K) float64 attention that is spread evenly over the keys in ``pairs`` (W, Q, K) bool, 0 elsewhere."""
    return pairs / pairs.sum(-1, keepdim=True).clamp(min=1).double()


def over_queries(values: Tensor, queries: Tensor) -> Tensor:
    """(H,) sum over images, windows and those queries (W, Q) bool of (b, W, H, Q) values.

    NaN anywhere stays NaN.
    """
    return torch.einsum("bwhq,wq->h", values, queries.to(values.dtype))


def of_pairs(values: Tensor, pairs: Tensor) -> Tensor:
    """(b, H) sum of (b, W, H, Q, K) values over ``pairs`` (1 or b, W, Q, K) bool, image by image."""
    return torch.einsum("bwhqk,bwqk->bh", values, pairs.to(values.dtype))


def where_site(layout: HeadLayout, values_A: Tensor, has: Callable[[HeadSite], bool]) -> Tensor:
    """(A,) or (A, K) values, NaN for the heads of sites for which ``has`` is False."""
    has_A = torch.tensor([has(site) for _, _, site in layout], device=values_A.device)
    return torch.where(has_A.view(-1, *[1] * (values_A.dim() - 1)), values_A, torch.nan)
