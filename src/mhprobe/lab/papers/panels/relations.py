"""Relations between patches of an image, found by single heads and by probes on the attention of all heads.

After Clark et al., 2019, arXiv 1906.04341, with relations of pictures in place of syntax. A key
other than the query is right for:

    same colour     a mean colour of the query's k-means cluster
    mirror image    the query's place in the image flipped left to right
    opposite        the query's place in the image turned by 180 degrees
    along an edge   the next patch, either way, along the edge through the query (structure tensor, Bigun & Granlund
                    1987); only queries with more edge than the median patch count

Single heads, section 4 and Table 1: a head's answer is the patch it attends to most. The best head
and the best fixed offset are chosen on validation images and scored on test images. In windows only
keys of the window count.

Probes, section 5: a probe scores each key j of a query i; the largest score is its answer.
Attention-only: sum over heads of w_h a_h(i, j) + u_h a_h(j, i), with a_h the attention of head h in
units of even attention. Attention-and-embedding: w_h and u_h depend on mean colour and contrast of
the two patches and on their products, in place of word vectors. Fitted on validation images, scored
on test images, beside baselines.

Shapes: b images, T = h w patches, W windows, H heads of one site, Q queries, K keys, R relations, A
heads of all sites, S sites, O offsets (down, right) within the window or the grid, N images of a
split. Of probes: n queries, F = 2 A features, V facts about a pair of patches.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.parts.places import (
    Piece,
    Places,
    attention_in_pieces,
    of_largest,
    of_pairs,
    reach_of,
)
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention as figure
from mhprobe.report.result import Result
from mhprobe.stats.significance import t_interval

RELATIONS = ("same colour", "mirror image", "opposite", "along an edge")
RIGHTLY = "share of queries answered rightly", "the right key is found more often"
_ALONG = ((0, 1), (1, 1), (1, 0), (1, -1))  # (down, right) of an edge at 0, 45, 90, 135 degrees
Ways = dict[str, tuple[str, Tensor]]
Columns = TypeVar("Columns", bound=tuple[Any, ...])


class QueryScores(NamedTuple):
    """Share of an image's queries that are answered rightly; NaN for an image without queries."""

    heads: Tensor  # (N, A, R)
    offsets: Tensor  # (N, S, O, R)
    even: Tensor  # (N, S, R)


def relations(material: Material, images: int = 1000, clusters: int = 8) -> dict[str, Result]:
    """Score each relation and way to answer: the best head, the best fixed offset of its block, an even draw.

    images: of each split, at most. clusters: of colours. Table: relation, way, who (block and head,
    or the offset), head, score (mean over test images), low, high (95 % over images), images.
    """
    rows = [
        {"relation": relation, "way": way, "who": who, "head": head, **mean_with_interval(values)}
        for relation, head, ways in best_of_each(material, images, clusters)
        for way, (who, values) in ways.items()
    ]
    result = Result(tables.from_rows(rows), figure.relation_scores(rows), of=material.of(images))
    return {"relations": result.saying(*RIGHTLY)}


def best_of_each(
    material: Material, images: int, clusters: int = 8
) -> Iterator[tuple[str, int, Ways]]:
    """Yield the name of each relation, with the best head and the ways of ``best_answers``."""
    layout, centres = (
        material.layout,
        palette_of(material, min(500, images), clusters).to(material.model.device),
    )

    def right(batch: Batch, piece: Piece) -> tuple[Tensor, None]:
        return right_keys(batch.images[piece.images], piece.site.token_grid, centres), None

    chosen, judged = (
        scored_images(
            "relations", layout, material.model, walk(), right, len(RELATIONS), torch.float32
        )
        for walk in (material.walk(images, split) for split in ("val", "test"))
    )  # in float32: there are many relations, images and offsets
    for r, relation in enumerate(RELATIONS):
        if not chosen.heads[..., r].isnan().all():
            yield relation, *best_answers(layout, chosen, judged, r)


def best_answers(
    layout: HeadLayout, chosen: QueryScores, judged: QueryScores, r: int = 0
) -> tuple[int, Ways]:
    """Return the best head, and by way to answer (head, fixed offset of its block, even draw) a name and (N,) scores.

    chosen, judged: scores of validation and of test images.
    """
    site_of = layout.site_of_head
    # late blocks have few keys, so heads are compared by their lead over an even draw
    above = chosen.heads[..., r].nanmean(0) - chosen.even[..., r].nanmean(0)[site_of]
    head = int(above.nan_to_num(-1).argmax())
    number, place, site = list(layout)[head]
    offset = int(chosen.offsets[:, number, :, r].nanmean(0).nan_to_num(-1).argmax())
    return head, {
        "best head": (f"block {site.block}, head {place}", judged.heads[:, head, r]),
        "best fixed offset": (offset_words(offset, site), judged.offsets[:, number, offset, r]),
        "even draw": ("", judged.even[:, number, r]),
    }


def scored_images(
    name: str,
    layout: HeadLayout,
    model: nn.Module,
    batches: Iterable[Batch],
    right: Callable[[Batch, Piece], tuple[Tensor, Tensor | None]],
    relations: int = 1,
    dtype: torch.dtype = torch.float64,
) -> QueryScores:
    """Scores of all images, the same on every rank.

    right: right keys and candidates of a piece, for ``scored_answers``.
    """
    most = max(math.prod(reach_of(site)) for site in layout.sites)
    sizes = ((layout.num_heads,), (len(layout.sites), most), (len(layout.sites),))
    parts: list[QueryScores] = []
    for batch, heads in recorded(model, batches, {"attn"}):
        scores = QueryScores(
            *(
                torch.full((len(batch.images), *of, relations), torch.nan, dtype=dtype)
                for of in sizes
            )
        )
        for piece in attention_in_pieces(name, layout, heads, whole=True):
            images = piece.images.cpu()
            for r, (of_heads, of_offsets, even) in enumerate(
                scored_answers(piece, *right(batch, piece))
            ):
                scores.heads[images, layout.span(piece.number), r] = of_heads.to("cpu", dtype)
                scores.offsets[images, piece.number, : of_offsets.shape[1], r] = of_offsets.to(
                    "cpu", dtype
                )
                scores.even[images, piece.number, r] = even.to("cpu", dtype)
        parts.append(QueryScores(*(column[batch.valid.cpu()] for column in scores)))
    return joined_parts(ranks.gather(joined_parts(parts)))


def joined_parts(parts: Sequence[Columns]) -> Columns:
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def mean_with_interval(values: Tensor) -> dict[str, float]:
    """Mean of (N,) scores with its 95 % interval, in [0, 1]; NaN is left out."""
    scores = values[~values.isnan()].double()
    mean, low, high = t_interval(scores)
    return {
        "score": float(mean),
        "low": max(0.0, float(low)),
        "high": min(1.0, float(high)),
        "images": len(scores),
    }


def scored_answers(
    piece: Piece, right: Tensor, candidates: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each relation the scores (b, H) of each head, (b, O) of each offset, (b,) of an even draw.

    right: (b, R, T, T). candidates: (T, T) bool, None for all but the query; queries without a
    right key do not count.
    """
    places, token = piece.places, tokens_of(piece.places, piece.site)
    others = places.patch_pairs & ~torch.eye(
        places.patch_pairs.shape[-1], dtype=torch.bool, device=right.device
    )
    if candidates is not None:
        others = others & candidates[token[:, :, None], token[:, None, :]]
    best_bWHQK = of_largest(piece.attn, others)
    reach = reach_of(piece.site)
    offset_WQK = places.offsets(reach) * others  # others can be further apart
    for of_relation in right.unbind(1):
        true_bWQK = of_relation[:, token[:, :, None], token[:, None, :]] & others
        asked_bWQ = true_bWQK.any(-1)
        asked_b = asked_bWQ.sum((1, 2)).double()
        asked_b[asked_b == 0] = torch.nan
        hit_bH = of_pairs(best_bWHQK, true_bWQK) / asked_b[:, None]
        hit_bO = torch.zeros(
            len(true_bWQK), math.prod(reach), dtype=torch.float64, device=right.device
        )
        hit_bO.index_add_(1, offset_WQK.flatten(), true_bWQK.flatten(1).double())
        even_b = (true_bWQK.sum(-1) / others.sum(-1).clamp(min=1)).sum((1, 2)) / asked_b
        yield hit_bH, hit_bO / asked_b[:, None], even_b


def tokens_of(places: Places, site: HeadSite) -> Tensor:
    """(W, K) number of the patch at each place of a window, 0 where there is none."""
    return (places.token - site.prefix_tokens).clamp(min=0)


def offset_words(offset: int, site: HeadSite) -> str:
    """Words for the number of an offset: "1 up, 2 left"."""
    height, width = reach_of(site)
    down, right = offset // width - height // 2, offset % width - width // 2
    ways = (abs(down), "down" if down > 0 else "up"), (abs(right), "right" if right > 0 else "left")
    return ", ".join(f"{steps} {way}" for steps, way in ways if steps) or "itself"


def right_keys(pictures: Tensor, grid: tuple[int, int], centres: Tensor) -> Tensor:
    """(B, R, T, T) bool, True for right keys.

    pictures: (B, 3, height, width). centres: of ``palette_of``.
    """
    height, width = grid
    cell = torch.arange(height * width, device=pictures.device).view(grid)
    colour_BT = torch.cdist(mean_colours(pictures, grid), centres).argmin(-1)
    same = colour_BT[:, :, None] == colour_BT[:, None, :]
    mirror, opposite = (
        cell.flip(axes).flatten()[:, None] == cell.flatten() for axes in ((1,), (0, 1))
    )
    right = torch.stack(
        [same, mirror.expand_as(same), opposite.expand_as(same), _along_edges(pictures, grid)], 1
    )
    itself = torch.eye(height * width, dtype=torch.bool, device=pictures.device)
    return right & ~itself


def mean_colours(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, 3) float64 mean colour of each patch."""
    return F.adaptive_avg_pool2d(pictures.double(), grid).flatten(2).transpose(1, 2)


def patch_pixels(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, pixels) of each patch; pixels that no whole patch covers are left out."""
    size = (pictures.shape[-2] // grid[0], pictures.shape[-1] // grid[1])
    cropped = pictures[..., : grid[0] * size[0], : grid[1] * size[1]]
    return F.unfold(cropped, size, stride=size).transpose(1, 2)


def palette_of(material: Material, images: int, clusters: int) -> Tensor:
    """(clusters, 3) mean colours of patches, by k-means over validation images; the same on every rank."""

    def centres() -> Tensor:
        grid, batches = (
            material.layout.sites[0].token_grid,
            material.data.batches("val", images=images),
        )
        patches = torch.cat(
            [mean_colours(batch.images[batch.valid], grid).flatten(0, 1).cpu() for batch in batches]
        )
        means = (
            KMeans(clusters, n_init=1, random_state=material.seed)
            .fit(patches.numpy())
            .cluster_centers_
        )
        return torch.from_numpy(means)

    return ranks.from_rank_zero(centres)


def _along_edges(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, T) bool, True where the key is the next patch along the query's edge."""
    light = pictures.double().mean(1)
    down, right = torch.gradient(light, dim=(1, 2))
    # the structure tensor of each patch
    xx, yy, xy = (
        F.adaptive_avg_pool2d(product, grid) for product in (right**2, down**2, right * down)
    )
    across = 0.5 * torch.atan2(2 * xy, xx - yy)  # the direction of the slope, with y downwards
    number = ((across / math.pi + 0.5) * 4).round().long() % 4  # the edge is at a right angle to it
    strong = (xx + yy).flatten(1)
    steps = torch.tensor(_ALONG, device=pictures.device)[number.flatten(1)]  # (B, T, 2)
    height, width = grid
    cell = torch.stack(
        torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1
    ).flatten(0, 1)
    offset = (cell[None, :] - cell[:, None]).to(pictures.device)  # key minus query
    along = (offset == steps[:, :, None]).all(-1) | (offset == -steps[:, :, None]).all(-1)
    return along & (strong > strong.median(1, keepdim=True).values)[:, :, None]


class Queries(NamedTuple):
    """Queries: features (n, K, F), facts (n, K, V), right (n, K, R) bool, offset and itself (n, K), image (n,)."""

    features: Tensor
    facts: Tensor
    right: Tensor
    offset: Tensor
    image: Tensor
    itself: Tensor


def probing(
    material: Material, images: int = 200, queries: int = 8, steps: int = 150, clusters: int = 8
) -> dict[str, Result]:
    """Score each relation and way to answer on test images.

    images: of each split, at most. queries: drawn from each image. steps: of the fit. clusters: of
    colours. UserError for a model whose heads do not all look at the same patches. Table: relation,
    way, score, low, high, images.
    """
    first = material.layout.sites[0]
    for site in material.layout.sites:
        if site.windows is not None or site.token_grid != first.token_grid:
            why = (
                "looks at windows"
                if site.windows is not None
                else f"has another grid of patches than {first.name}"
            )
            raise UserError(
                f"probing: {site.name} {why}; a probe needs the same patches for all heads, as in "
                "a ViT."
            )
    centres = palette_of(material, images, clusters)
    (fit, test), (dull_fit, dull_test) = (
        tuple(
            collect_features(material, model, split, images, centres, queries)
            for split in ("val", "test")
        )
        for model in (material.model, material.untrained())
    )
    rows: list[dict[str, Any]] = []
    for r, relation in enumerate(RELATIONS):
        answerable = test.right[..., r].any(1)
        if not fit.right[..., r].any() or not answerable.any():
            continue
        scores = {
            "attention and embedding": probe(fit, test, r, steps, embedded=True),
            "attention only": probe(fit, test, r, steps),
            "untrained attention": probe(dull_fit, dull_test, r, steps),
            "best fixed offset": _by_offset(fit, test, r),
            "most similar pixels": -test.facts[..., -1],
        }
        for way, score in scores.items():
            rows.append({"relation": relation, "way": way, "who": "", **_judge(score, test, r)})
        even = test.right[..., r].double().sum(1) / (~test.itself).sum(1)
        rows.append(
            {
                "relation": relation,
                "way": "even draw",
                "who": "",
                **_mean(even, answerable, test.image),
            }
        )
    result = Result(tables.from_rows(rows), figure.relation_scores(rows), of=material.of(images))
    return {"probes": result.saying(*RIGHTLY)}


def collect_features(
    material: Material, model: nn.Module, split: str, images: int, centres: Tensor, queries: int
) -> Queries:
    """Return the features of a split for probes, on the CPU, the same on every rank."""
    site = material.layout.sites[0]
    grid, prefix = site.token_grid, site.prefix_tokens
    patches = grid[0] * grid[1]
    across = torch.arange(patches) % grid[1]
    offsets = (
        (torch.arange(patches) - torch.arange(patches)[:, None]) * 2 * grid[1]
        + across
        - across[:, None]
    )
    parts: list[Queries] = []
    for batch, heads in recorded(model, material.walk(images, split)(), {"attn"}):
        attn = [weights[:, 0, :, prefix:, prefix:] for weights in heads.need("attn", "probing")]
        every = torch.cat(attn, 1).float().cpu() * patches
        shown = batch.images.cpu()
        facts = pair_facts(shown, grid)
        right = right_keys(shown, grid, centres)
        for row in torch.nonzero(batch.valid).flatten().tolist():
            generator = torch.Generator().manual_seed(
                material.seed * 1_000_003 + int(batch.index[row])
            )
            at = torch.randperm(patches, generator=generator)[:queries]
            both = torch.cat(
                [every[row][:, at], every[row].transpose(1, 2)[:, at]]
            )  # to and from the keys
            itself = at[:, None] == torch.arange(patches)
            image = torch.full((len(at),), int(batch.index[row]))
            keys = right[row][:, at].permute(1, 2, 0)
            parts.append(
                Queries(
                    both.permute(1, 2, 0), facts[row][at].float(), keys, offsets[at], image, itself
                )
            )
    return joined_parts(ranks.gather(joined_parts(parts)))


def pair_facts(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, T, V): 1, colour and contrast of query and key, their products, and how far apart their pixels are."""
    colour = mean_colours(pictures, grid)
    squares = F.adaptive_avg_pool2d(pictures.double() ** 2, grid).flatten(2).transpose(1, 2)
    contrast = (squares - colour**2).mean(-1, keepdim=True).clamp(min=0).sqrt()
    facts = torch.cat([colour, contrast], -1)
    query, key = torch.broadcast_tensors(facts[:, :, None], facts[:, None, :])
    pixels = patch_pixels(pictures.double(), grid)
    apart = torch.cdist(pixels, pixels)[..., None] / pixels.shape[-1] ** 0.5
    return torch.cat([torch.ones_like(apart), query, key, query * key, apart], -1)


def probe(fit: Queries, test: Queries, relation: int, steps: int, embedded: bool = False) -> Tensor:
    """(n, K) scores of a probe fitted to ``fit`` by the softmax over keys.

    embedded: with the facts about the pair.
    """
    wide = fit.facts.shape[-1] if embedded else 1

    def score(features: Tensor, facts: Tensor, itself: Tensor) -> Tensor:
        return ((features @ weight) * facts[..., :wide]).sum(-1).masked_fill(itself, -torch.inf)

    with torch.inference_mode(False), torch.enable_grad():
        fit, test = (
            Queries(*(part.clone() for part in split)) for split in (fit, test)
        )  # not of inference mode
        answerable = fit.right[..., relation].any(1)
        features, facts, right, _, _, itself = (part[answerable] for part in fit)
        right = right[..., relation]
        weight = torch.zeros(features.shape[-1], wide, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.05)
        for _ in range(steps):
            logits = score(features, facts, itself).log_softmax(1)
            loss = (
                -logits.masked_fill(~right, -torch.inf).logsumexp(1).mean()
                + 1e-3 * weight.square().sum()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return score(test.features, test.facts, test.itself).detach()


def _by_offset(fit: Queries, test: Queries, relation: int) -> Tensor:
    numbers, place = fit.offset.unique(return_inverse=True)
    counts = place.flatten().bincount(fit.right[..., relation].double().flatten())
    return (test.offset == numbers[counts.argmax()]).float() - 2 * test.itself


def _judge(score: Tensor, test: Queries, relation: int) -> dict[str, float]:
    """Hit rate of the key with the largest score; where several keys share it, their share."""
    score = score.masked_fill(test.itself, -torch.inf)
    best = score == score.amax(1, keepdim=True)
    # an offset that leaves the image names no key: wrong
    named = best & (best.sum(1, keepdim=True) < score.shape[1] - 1)
    hit = (named & test.right[..., relation]).sum(1).double() / best.sum(1)
    return _mean(hit, test.right[..., relation].any(1), test.image)


def _mean(hit: Tensor, answerable: Tensor, image: Tensor) -> dict[str, float]:
    _, place = image[answerable].unique(return_inverse=True)
    return mean_with_interval(place.bincount(hit[answerable]) / place.bincount())
