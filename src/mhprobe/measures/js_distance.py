"""Jensen-Shannon divergence between the attention of two heads.

Clark, Khandelwal, Levy & Manning, 2019, arXiv 1906.04341, section 6. JS(p, q) = H((p + q) / 2) -
(H(p) + H(q)) / 2, so pairs need entropies of mixtures only. Here it is divided by ln 2, which puts
it in [0, 1], and averaged over queries and images; Clark et al. smooth the rows and add up
(``clark``).

The null is the divergence between head a on one image and head b on another, query by query, over
all ordered pairs of the few images with the smallest hash (hashing.py). Its error is that of the
jackknife over images (Efron & Stein, 1981, Annals of Statistics 9:586).

Swin's rows are renormalised over the shift region. If two blocks cut their windows differently, a
row is compared with the other's row of the same query; keys outside the window have no weight.
Padding of texts does not count.
Shapes: G heads of a group.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.errors import Positive, UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Shown, Weights
from mhprobe.measures.base import Meaning
from mhprobe.measures.parts.embedding import cluster, embed, layer_ratio
from mhprobe.measures.parts.hashing import Pool, image_numbers, numbers_in
from mhprobe.measures.parts.pairs import Pairs, flat_heads, groups_of_sites, refuse_unlike_sites
from mhprobe.measures.parts.places import (
    MeanOfAttention,
    Piece,
    SiteAttention,
    attention_of,
    chunks,
    even_over,
    in_cache,
    places_alone,
    places_in,
    places_of,
    queries_of,
    shares,
    sum_x_ln_x,
    words_of,
)
from mhprobe.stats.intervals import SHARE, SIZE


class JSDistance(MeanOfAttention):
    """Mean Jensen-Shannon divergence between the attention of two heads, an embedding and clusters of heads.

    pairs: compare the heads of one "layer", of one "stage", or "all", which needs the same tokens
    everywhere (ViT).
    clark: mix rows with 0.1 % even attention, and sum divergences (nats) over queries and images.
    clusters: largest number of clusters of each group of compared heads. permutations, seed:
    relabellings behind p.
    null_images: number of images that are paired for the null, whose attention is kept; 0 for no
    null. Raises UserError for counts that are too small, and if compared heads do not attend among
    the same tokens.

    Columns: value (A, A), larger is more different: in [0, 1], 0 equal, 1 no key in common; NaN
    outside the groups. low, high (A, A): its 95 % interval over images. null (A, A): the same two
    heads on different images; heads below it are more alike. null_draws (A, A, N): one per null
    image, around null, spread so that the value of unrelated heads is one more of them. NaN with
    one image; absent with clark. cluster (A,), by Ward's linkage, numbered within a group.
    embedding (A, 2): points of each group whose distances resemble value; stress (A,): of the
    embedding, 0 is perfect, above 0.2 poor. ratio (): mean distance within layers over that between
    layers, below 1 if heads of a layer are alike; p (): share of random assignments of heads to
    layers with as small a ratio; both NaN with pairs=layer.
    """

    fooled_by = "by definition: two heads that look alike and write different things"
    needs = frozenset({"attn"})
    by_rows = True
    kind = "pairwise"
    of_pairs = True  # above the diagonal: JS over queries, queries
    larger = "the two heads look at different places"
    empty = "ratio and p need pairs within and between layers (pairs=stage or all); null needs two unlike images"
    alike = "smallest"
    within = SHARE
    also = ("embedding",)
    along: ClassVar[Mapping[str, Meaning]] = {
        "embedding": Meaning(
            "place of the head in the plane, units of the distance",
            "nothing: distances between heads count, places do not",
        )
    }

    def __init__(
        self,
        layout: HeadLayout,
        pairs: Pairs = "layer",
        clark: bool = False,
        clusters: Positive = 4,
        permutations: Positive = 1000,
        seed: int = 0,
        null_images: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if null_images < 0 or null_images == 1:
            raise UserError(f"js_distance: null_images is 0, or at least 2, got {null_images}.")
        self.within = SIZE if clark else SHARE
        self.clark, self.clusters, self.permutations, self.seed = (
            clark,
            clusters,
            permutations,
            seed,
        )
        self.label = "JS divergence (nats, summed)" if clark else "JS divergence / ln 2"
        self.unit = "nats" if clark else ""
        self.axes = {"embedding": ["x", "y"]}
        self.groups = groups_of_sites(self.name, layout, pairs)
        for group in self.groups:
            sites = [layout.sites[s] for s in group]
            facts = [f"grid {site.grid}, {site.prefix_tokens} tokens before it" for site in sites]
            refuse_unlike_sites(self.name, pairs, sites, facts)
        texts = any(site.line for site in layout.sites)
        self.of_sites = not texts and all(len(group) == 1 for group in self.groups)
        self.null_images = (
            0 if clark else null_images
        )  # a sum over images has no null that is a mean
        self.pool = Pool(self.null_images)
        self.forms: list[Weights] = []  # of the attention that the pool holds the parts of

    @property
    def bytes_kept(self) -> int:
        of_image = sum(min(site.attention_size, site.pairs_size) for site in self.layout.sites)
        return super().bytes_kept + self.null_images * 4 * of_image

    def look(self, piece: Piece, batch: HeadBatch) -> None:
        heads = flat_heads(self.layout, (piece.number,)).to(self.device)
        js_bHH, queries_b = self._of_piece(piece)
        if (whole := self.whole(piece, js_bHH, queries_b)) is not None:
            self._add_heads(heads, *whole)

    def _of_piece(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """``_divergences`` of the queries of a piece."""
        rows = piece.rows
        if self.clark:
            rows = _smoothed(rows, piece.places.pairs)
        sums_bWHQ = rows.sum(-1)
        queries_b = (sums_bWHQ.sum(2) > 0).sum((1, 2)).double()
        own_bH = (sum_x_ln_x(rows) if self.clark else piece.x_ln_x).sum((1, 3))
        made = _Rows(rows, own_bH, sums_bWHQ.sum((1, 3)), queries_b)
        return self._scaled(_of_heads(made, made, above=True)), queries_b

    def _add_heads(self, heads: Tensor, js_bGG: Tensor, queries_b: Tensor) -> None:
        weight_b = torch.ones_like(queries_b) if self.clark else queries_b
        self.add_images((heads[:, None], heads), js_bGG, weight_b[:, None, None])

    def finish_batch(self, batch: HeadBatch) -> None:
        recorded = [
            attention_of(self.name, self.layout, batch, s, texts=True)
            for s in range(len(self.layout.sites))
        ]
        for sites in () if self.of_sites else self.groups:
            attn = [recorded[s] for s in sites]
            for images in chunks(batch.valid, attn):
                js_bGG, queries_b = self._divergences(sites, [a.of(images) for a in attn])
                heads = flat_heads(self.layout, sites).to(self.device)
                self._add_heads(heads, js_bGG, queries_b)
        if self.null_images:
            self._keep(batch, recorded)

    def _keep(self, batch: HeadBatch, recorded: list[SiteAttention]) -> None:
        """Add images to the pool of the null; texts without padding, so that their hash does not depend on it."""
        kept = [recorded[s] for s in sum(self.groups, ())]
        if not self.layout.sites[0].line:
            self.forms = self.forms or [attn.weights.form() for attn in kept]
            valid = slice(None) if batch.valid.all() else batch.valid  # a slice copies nothing
            parts = [
                part.unflatten(0, attn.shape[:2])[valid]
                for attn in kept
                for part in attn.weights.parts()
            ]
            self.pool.add(numbers_in(batch), parts)
            return
        (valid_V,) = batch.valid.nonzero(as_tuple=True)
        everything = [attn.at(valid_V) for attn in kept]
        self.forms = self.forms or [Shown(attn[:1, 0]).form() for attn in everything]
        words_bT = words_of(everything[0])
        order_bT = (~words_bT).byte().argsort(dim=1, stable=True)
        ids_bT = words_bT if batch.images is None else batch.images[batch.valid]
        number = image_numbers((ids_bT * words_bT).gather(1, order_bT))
        self.pool.add(number, [_in_order(attn, order_bT) for attn in everything])

    def reset(self) -> None:
        super().reset()
        self.pool, self.forms = Pool(self.null_images), []

    def merge_state(self, incoming_state: Any) -> None:
        super().merge_state(incoming_state)
        if isinstance(incoming_state, JSDistance) and incoming_state.pool.parts:
            self.pool.add(incoming_state.pool.number, incoming_state.pool.parts)
            self.forms = self.forms or incoming_state.forms

    def before_sync(self) -> None:
        self.pool.gather()
        everyones = ranks.gather(self.forms)  # a rank without images has none
        self.forms = self.forms or next((forms for forms in everyones if forms), [])

    def _pooled(self) -> list[SiteAttention]:
        """Attention of the images of the pool, per site of the groups, one after the other."""
        parts, found = iter(self.pool.held[1:]), list[SiteAttention]()
        for form in self.forms:
            mine = [next(parts).flatten(0, 1) for _ in form.parts()]
            found.append(SiteAttention(form.of(mine), len(self.pool)))
        return found

    def finish(self) -> dict[str, Tensor]:
        scale = self.images if self.clark else 1  # Clark et al. add up
        pairs = {
            name: scale * (upper.triu(1) + upper.triu(1).mT)
            for name, upper in self.over_images().items()
        }
        on_cpu = pairs["value"].nan_to_num(0).cpu()
        layer = self.layout.site_of_head
        group, clusters = torch.empty_like(layer), torch.empty_like(layer)
        points, stress = on_cpu.new_empty(len(layer), 2), on_cpu.new_empty(len(layer))
        for number, sites in enumerate(self.groups):
            heads = flat_heads(self.layout, sites)
            distance = on_cpu[heads[:, None], heads]
            group[heads], clusters[heads] = number, cluster(distance, self.clusters)
            points[heads], stress[heads] = embed(distance)
        ratio, p = layer_ratio(on_cpu, layer, group, self.permutations, self.seed)
        outside = (group[:, None] != group).to(self.device)
        columns = {
            "cluster": clusters,
            "embedding": points,
            "stress": stress,
            "ratio": ratio,
            "p": p,
        }
        return {
            **{name: part.masked_fill(outside, torch.nan) for name, part in pairs.items()},
            **self._null(outside),
            **{name: column.to(self.device) for name, column in columns.items()},
        }

    def _null(self, outside: Tensor) -> dict[str, Tensor]:
        """Columns of the null, from pairs of images of the pool."""
        images = len(self.pool)
        if images < 2:
            nothing = self.image_sums.new_full(outside.shape, torch.nan)
            return {"null": nothing} if self.null_images else {}
        sums_NXAA = self.image_sums.new_zeros(images, 2, *outside.shape)
        pooled = iter(self._pooled())
        for sites in self.groups:
            js_NNGG, queries_NN = self._between(sites, [next(pooled) for _ in sites])
            heads = flat_heads(self.layout, sites).to(self.device)
            # a pair of images, in both orders, is one of each of them
            sums_NXAA[:, 0, heads[:, None], heads] += js_NNGG.sum(0) + js_NNGG.sum(1)
            queries_N11 = (queries_NN.sum(0) + queries_NN.sum(1))[:, None, None]
            sums_NXAA[:, 1, heads[:, None], heads] += queries_N11
        whole_XAA = sums_NXAA.sum(0) / 2  # every pair was counted for two images

        def mean(sums_XAA: Tensor) -> Tensor:
            return (sums_XAA[0] + sums_XAA[0].mT) / sums_XAA[1].masked_fill(outside, torch.nan)

        null_AA = mean(whole_XAA)
        draws_AAN = null_AA[..., None].repeat(1, 1, images)
        if images > 2:
            without_AAN = torch.stack([mean(whole_XAA - part) for part in sums_NXAA], -1)
            # the value is one more draw: its distance from the mean of N has the variance 1 + 1 / N
            # times a draw's
            one_more = ((1 / images + 1 / int(self.images)) / (1 + 1 / images)) ** 0.5
            draws_AAN += one_more * (images - 1) * (null_AA[..., None] - without_AAN)
        return {"null": null_AA, "null_draws": draws_AAN}

    def _between(self, sites: tuple[int, ...], attn: list[SiteAttention]) -> tuple[Tensor, Tensor]:
        """(N, N, G, G) sums as of ``_divergences``, of heads a on image i with heads b on image j; (N, N) queries.

        attn: of the images of the pool, per site. 0 for an image with itself.
        """
        images = len(self.pool)
        widths = sum(self.layout.sites[s].num_heads for s in sites)
        js_NNGG = self.image_sums.new_zeros(images, images, widths, widths)
        queries_NN = self.image_sums.new_zeros(images, images)
        text = self.layout.sites[sites[0]].line
        each = torch.arange(images, device=self.device).split(1)
        for queries in self._split(sites, attn):
            shown = [[a.at(one, queries) for a in attn] for one in each]
            rows = [] if text else [self._all_rows(sites, of, queries) for of in shown]
            for i, j in itertools.permutations(range(images), 2):
                if text:  # words of both texts are compared
                    ours = self._all_rows(sites, _of_common_queries(shown[i], shown[j]), queries)
                    theirs = self._all_rows(sites, _of_common_queries(shown[j], shown[i]), queries)
                else:
                    ours, theirs = rows[i], rows[j]
                js_NNGG[i, j] += self._compared(sites, ours, theirs)[0]
                queries_NN[i, j] += ours[0].queries[0]
        return self._scaled(js_NNGG), queries_NN

    def _divergences(
        self, sites: tuple[int, ...], attn: list[SiteAttention]
    ) -> tuple[Tensor, Tensor]:
        """(b, G, G) sum over queries of the divergences of a group's heads, above the diagonal; (b,) queries.

        In units of ln 2, with clark in nats.
        """
        js_bGG, queries_b = torch.zeros(()), torch.zeros(())
        for queries in self._split(sites, attn):
            rows = self._all_rows(sites, [a.all(queries) for a in attn], queries)
            js_bGG = self._compared(sites, rows, rows) + js_bGG
            queries_b = rows[0].queries + queries_b
        return self._scaled(js_bGG), queries_b

    def _split(
        self, sites: tuple[int, ...], attn: list[SiteAttention]
    ) -> tuple[Tensor, ...] | tuple[None]:
        """Queries that are looked at together; None for all of them."""
        # rows of unlike windows are compared by place, which takes all of them
        alike = len({places_alone(self.layout.sites[s]) for s in sites}) == 1
        text = self.layout.sites[sites[0]].line
        return (queries_of(attn) if alike and not text else ()) or (None,)

    def _scaled(self, js_bGG: Tensor) -> Tensor:
        return js_bGG.clamp_(min=0) / (1 if self.clark else math.log(2))

    def _compared(
        self, sites: tuple[int, ...], ours: list["_Rows"], theirs: list["_Rows"]
    ) -> Tensor:
        """(b, G, G) ``_divergences`` of some queries, in nats. ours, theirs: of the first and second head of a pair."""
        offsets = [0, *itertools.accumulate(self.layout.sites[s].num_heads for s in sites)]
        js_bGG = ours[0].own.new_zeros(len(ours[0].own), offsets[-1], offsets[-1])
        for i, a in enumerate(sites):
            for j, b in enumerate(sites[i:], start=i):
                here = js_bGG[:, offsets[i] : offsets[i + 1], offsets[j] : offsets[j + 1]]
                self._fill(here, a, ours[i], b, theirs[j])
        return js_bGG

    def _all_rows(
        self, sites: tuple[int, ...], attn: list[Tensor], queries: Tensor | None
    ) -> list["_Rows"]:
        made = []
        for number, of_site in zip(sites, attn, strict=True):
            rows = self._rows(number, of_site, queries)
            text = self.layout.sites[number].line
            elsewhere = (0, 2) if text else (1, 2)  # a text is a window
            asked_b = (rows.sum((2, 4)) > 0).sum(elsewhere).double()
            made.append(_Rows(rows, _x_ln_x(rows, text), _of_image(rows, text), asked_b))
        return made

    def _rows(self, number: int, attn: Tensor, queries: Tensor | None) -> Tensor:
        """(b, W, H, Q, K) distributions; (1, b, ...) of texts, as in places.py."""
        site = self.layout.sites[number]
        places = places_in(site, attn)
        pairs = places.pairs if queries is None else places.of(queries).pairs
        row_bWHQK = shares(attn.transpose(0, 1) if site.line else attn, pairs)
        return _smoothed(row_bWHQK, pairs) if self.clark else row_bWHQK

    def _fill(self, js_bHH: Tensor, a: int, ours: "_Rows", b: int, theirs: "_Rows") -> None:
        """The divergences between the heads of two sites; of one site with itself, above the diagonal."""
        site, other = (self.layout.sites[number] for number in (a, b))
        if places_alone(site) != places_alone(other) and not site.line:
            moved = _rearranged(theirs.rows, other, site)
            theirs = theirs._replace(rows=moved, own=_x_ln_x(moved, site.line))
        js_bHH += _of_heads(ours, theirs, above=a == b, text=site.line)


class _Rows(NamedTuple):
    """Distributions of some queries of a site, and their sums.

    rows: (b, W, H, Q, K); of texts (1, b, ...). own, mass: (b, H) sums of x ln x, and of x. queries:
    (b,) number of those that look somewhere.
    """

    rows: Tensor
    own: Tensor
    mass: Tensor
    queries: Tensor


def _smoothed(rows: Tensor, pairs: Tensor) -> Tensor:
    """(b, W, H, Q, K) rows with 0.1 % of even attention."""
    return 0.999 * rows + 0.001 * even_over(pairs)[:, None]


def _of_heads(ours: _Rows, theirs: _Rows, above: bool, text: bool = False) -> Tensor:
    """(b, H, G) sum over queries of the divergences of two sites' heads, in nats; 0 where they are not asked.

    above: of one site, and only pairs above the diagonal.
    """
    count = ours.own.shape[1]
    js_bHG = ours.own.new_zeros(len(ours.own), count, theirs.own.shape[1])
    shifted = ours.rows + 1e-300  # 0 ln 0 is 0, and this changes no other x
    for h in range(count - 1 if above else count):
        others = slice(h + 1 if above else 0, None)
        one, some = shifted[:, :, h : h + 1], theirs.rows[:, :, others]
        both_bG = _sum_of_both(one, some, (0, 3, 4) if text else (1, 3, 4))  # a text is a window
        # H((p + q) / 2) - (H(p) + H(q)) / 2, with s = p + q. A key that only q has adds q ln 2 / 2:
        # that is in its mass, so keys that were left out in rearranging are accounted for
        mass_bG = ours.mass[:, h, None] + theirs.mass[:, others]
        own_bG = ours.own[:, h, None] + theirs.own[:, others]
        js_bHG[:, h, others] = (own_bG - both_bG + math.log(2) * mass_bG) / 2
    return js_bHG


def _sum_of_both(one: Tensor, some: Tensor, over: tuple[int, ...]) -> Tensor:
    """(b, G) sum of s ln s, of the sum s of rows (b, W, 1, Q, K) above 0 and rows (b, W, G, Q, K)."""
    parts = max(1, math.ceil(some.numel() / in_cache(some)))
    sums = []
    for a, b in zip(one.chunk(parts, 3), some.chunk(parts, 3), strict=True):
        both = a + b
        sums.append(both.log().mul_(both).sum(over))
    return torch.stack(sums).sum(0)


def _in_order(attn: Tensor, order_bT: Tensor) -> Tensor:
    """(b, 1, H, T, T) attention of texts whose words stand in another order."""
    queries = order_bT[:, None, None, :, None].expand(attn.shape)
    return attn.gather(3, queries).gather(4, queries.mT)


def _of_common_queries(attn: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    """Per site the attention (b, 1, H, T, T) of those words for which there is one in the other text."""
    return [a * words_of(b)[:, None, None, :, None] for a, b in zip(attn, other, strict=True)]


def _x_ln_x(rows: Tensor, text: bool) -> Tensor:
    """(b, H) sum of x ln x over the entries of each head."""
    return sum_x_ln_x(rows).sum((0, 3) if text else (1, 3))


def _of_image(rows: Tensor, text: bool) -> Tensor:
    """(b, H) sum over (b, W, H, Q, K), or of texts (1, b, H, Q, K)."""
    return rows.sum((0, 3, 4) if text else (1, 3, 4))


def _rearranged(rows: Tensor, site: HeadSite, like: HeadSite) -> Tensor:
    """Rows of ``site`` (b, W, H, Q, K) in the windows of ``like``, without the keys outside of those."""
    row_WQ, key_WQK, there_WQK = _rearrangement(site, like, rows.device)
    flat_bHRK = rows.transpose(1, 2).flatten(2, 3)
    moved_bHWQK = flat_bHRK[:, :, row_WQ].gather(
        -1, key_WQK.expand(*flat_bHRK.shape[:2], *key_WQK.shape)
    )
    return (moved_bHWQK * there_WQK).transpose(1, 2)


@functools.lru_cache(maxsize=256)
def _rearrangement(
    site: HeadSite, like: HeadSite, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """(W, Q) row of each query in the other's windows; (W, Q, K) place of each key there, and bool if there is one."""
    with torch.inference_mode(False):
        old, new = places_of(site, device), places_of(like, device)
        count = old.token.shape[1]
        home = torch.empty(int(old.token.max()) + 1, dtype=torch.long, device=device)
        (occupied,) = (old.token.flatten() >= 0).nonzero(as_tuple=True)
        home[old.token.flatten()[occupied]] = occupied
        place_WK = home[new.token.clamp(min=0)]
        window_WK, place_in_window_WK = place_WK // count, place_WK % count
        together = window_WK[:, :, None] == window_WK[:, None]
        key_WQK = place_in_window_WK[:, None].expand(together.shape)
        may = old.pairs.flatten(0, 1)[place_WK].gather(-1, key_WQK)
        return place_WK, key_WQK, together & may & new.pairs
