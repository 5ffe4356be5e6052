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
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.errors import Positive, UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, Shown, Weights
from mhprobe.measures.base import Meaning
from mhprobe.measures.parts.embedding import cluster, embed, layer_ratio
from mhprobe.measures.parts.hashing import Pool, image_numbers, numbers_in
from mhprobe.measures.parts.pairs import Pairs, flat_heads, groups, refuse_unlike
from mhprobe.measures.parts.places import (
    Attention,
    MeanOfAttention,
    Piece,
    attention_of,
    chunks,
    even_over,
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
        self.groups = groups(self.name, layout, pairs)
        for group in self.groups:
            sites = [layout.sites[s] for s in group]
            facts = [f"grid {site.grid}, {site.prefix_tokens} tokens before it" for site in sites]
            refuse_unlike(self.name, pairs, sites, facts)
        texts = any(site.line for site in layout.sites)
        self.of_sites = not texts and all(len(group) == 1 for group in self.groups)
        self.null_images = (
            0 if clark else null_images
        )  # a sum over images has no null that is a mean
        self.pool = Pool(self.null_images)
        self.forms: list[Weights] = []  # of the attention that the pool holds the parts of

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
        return self._scaled(_of_site(rows, own_bH, sums_bWHQ.sum((1, 3)))), queries_b

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

    def _keep(self, batch: HeadBatch, recorded: list[Attention]) -> None:
        """Add images to the pool of the null; texts without padding, so that their hash does not depend on it."""
        kept = [recorded[s] for s in sum(self.groups, ())]
        if not self.layout.sites[0].line:
            self.forms = self.forms or [attn.weights.alone() for attn in kept]
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
        self.forms = self.forms or [Shown(attn[:1, 0]) for attn in everything]
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

    def _pooled(self) -> list[Attention]:
        """Attention of the images of the pool, per site of the groups, one after the other."""
        parts, found = iter(self.pool.held[1:]), list[Attention]()
        for form in self.forms:
            mine = [next(parts).flatten(0, 1) for _ in form.parts()]
            found.append(Attention(form.of(mine), len(self.pool)))
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
        everyone = torch.ones(images, dtype=torch.bool, device=self.device)
        pooled = self._pooled()
        for apart in range(1, images):
            first = 0
            for sites in self.groups:
                attn = pooled[first : first + len(sites)]
                parts = [
                    self._divergences(
                        sites,
                        [a.of(these) for a in attn],
                        [a.of((these - apart) % images) for a in attn],
                    )
                    for these in chunks(everyone, attn)
                ]
                js_bGG, queries_b = map(torch.cat, zip(*parts, strict=True))
                heads = flat_heads(self.layout, sites).to(self.device)
                # of head a on image i with head b on image i - apart: a pair of both images
                queries_b11 = (queries_b + queries_b.roll(-apart))[:, None, None]
                sums_NXAA[:, 0, heads[:, None], heads] += js_bGG + js_bGG.roll(-apart, 0)
                sums_NXAA[:, 1, heads[:, None], heads] += queries_b11
                first += len(sites)
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

    def _divergences(
        self, sites: tuple[int, ...], attn: list[Attention], other: list[Attention] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(b, G, G) sum over queries of the divergences of a group's heads, above the diagonal; (b,) queries.

        In units of ln 2, with clark in nats. other: attention of the second head of a pair.
        """
        # rows of unlike windows are compared by place, which takes all of them
        alike = len({places_alone(self.layout.sites[s]) for s in sites}) == 1
        split = queries_of(attn) if alike and not self.layout.sites[sites[0]].line else ()
        parts = [
            self._of_queries(
                sites,
                [a.all(queries) for a in attn],
                None if other is None else [a.all(queries) for a in other],
                queries,
            )
            for queries in split or (None,)
        ]
        js_bGG, queries_b = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        return self._scaled(js_bGG), queries_b

    def _scaled(self, js_bGG: Tensor) -> Tensor:
        return js_bGG.clamp_(min=0) / (1 if self.clark else math.log(2))

    def _of_queries(
        self,
        sites: tuple[int, ...],
        attn: list[Tensor],
        other: list[Tensor] | None,
        queries: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """``_divergences`` of some queries, in nats."""
        if other is not None and self.layout.sites[sites[0]].line:
            attn, other = _of_common_queries(attn, other), _of_common_queries(other, attn)
        rows = [self._rows(s, a, queries) for s, a in zip(sites, attn, strict=True)]
        second = (
            rows
            if other is None
            else [self._rows(s, a, queries) for s, a in zip(sites, other, strict=True)]
        )
        widths = [self.layout.sites[s].num_heads for s in sites]
        offsets = [0, *itertools.accumulate(widths)]
        elsewhere = (0, 2) if self.layout.sites[sites[0]].line else (1, 2)  # a text is a window
        queries_b = (rows[0].sum((2, 4)) > 0).sum(elsewhere).double()
        js_bGG = rows[0].new_zeros(len(queries_b), offsets[-1], offsets[-1])
        for i, a in enumerate(sites):
            for j, b in enumerate(sites[i:], start=i):
                here = js_bGG[:, offsets[i] : offsets[i + 1], offsets[j] : offsets[j + 1]]
                self._fill(here, a, rows[i], b, second[j])
        return js_bGG, queries_b

    def _rows(self, number: int, attn: Tensor, queries: Tensor | None) -> Tensor:
        """(b, W, H, Q, K) distributions; (1, b, ...) of texts, as in places.py."""
        site = self.layout.sites[number]
        places = places_in(site, attn)
        pairs = places.pairs if queries is None else places.of(queries).pairs
        row_bWHQK = shares(attn.transpose(0, 1) if site.line else attn, pairs)
        return _smoothed(row_bWHQK, pairs) if self.clark else row_bWHQK

    def _fill(self, js_bHH: Tensor, a: int, row_a: Tensor, b: int, row_b: Tensor) -> None:
        """The divergences between the heads of two sites; of one site with itself, above the diagonal."""
        text = self.layout.sites[a].line
        mass_a, mass_b = _of_image(row_a, text), _of_image(row_b, text)
        site, other = (self.layout.sites[number] for number in (a, b))
        if places_alone(site) != places_alone(other) and not site.line:
            row_b = _rearranged(row_b, other, site)
        if row_a is row_b and not text:
            js_bHH += _of_site(row_a, _x_ln_x(row_a, text), mass_a)
            return
        own_a, own_b = _x_ln_x(row_a, text), _x_ln_x(row_b, text)
        for h in range(own_a.shape[1]):
            others = slice(h + 1 if a == b else 0, None)
            both_bH = _x_ln_x(row_a[:, :, h : h + 1] + row_b[:, :, others], text)
            # H((p + q) / 2) - (H(p) + H(q)) / 2, with s = p + q. A key that only q has adds q ln 2
            # / 2: that is in its mass, so keys that were left out in rearranging are accounted for
            mass_bH = mass_a[:, h, None] + mass_b[:, others]
            js_bHH[:, h, others] = (
                own_a[:, h, None] + own_b[:, others] - both_bH + math.log(2) * mass_bH
            ) / 2


def _smoothed(rows: Tensor, pairs: Tensor) -> Tensor:
    """(b, W, H, Q, K) rows with 0.1 % of even attention."""
    return 0.999 * rows + 0.001 * even_over(pairs)[:, None]


def _of_site(rows: Tensor, own_bH: Tensor, mass_bH: Tensor) -> Tensor:
    """(b, H, H) sum over queries of the divergences of the heads of one site, above the diagonal, in nats.

    own_bH, mass_bH: sums of x ln x, and of x, of each head.
    """
    images, _, heads = rows.shape[:3]
    js_bHH = rows.new_zeros(images, heads, heads)
    above = rows + 1e-300  # 0 ln 0 is 0, and this changes no other x
    # two tensors for all pairs: fresh ones of this size cost more than the logarithm
    both_bWhQK, logs_bWhQK = torch.empty_like(rows), torch.empty_like(rows)
    for h in range(heads - 1):
        both = torch.add(above[:, :, h : h + 1], rows[:, :, h + 1 :], out=both_bWhQK[:, :, h + 1 :])
        logs = torch.log(both, out=logs_bWhQK[:, :, h + 1 :])
        both_bH = logs.mul_(both).sum((1, 3, 4))
        mass_bh = mass_bH[:, h, None] + mass_bH[:, h + 1 :]
        own_bh = own_bH[:, h, None] + own_bH[:, h + 1 :]
        js_bHH[:, h, h + 1 :] = (own_bh - both_bH + math.log(2) * mass_bh) / 2
    return js_bHH


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
