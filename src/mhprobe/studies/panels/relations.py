"""Relations between patches: the best head beside the best fixed offset (Clark et al., Table 1).

A head's answer is the patch it attends to most, the query itself left out. The head and the offset are chosen on
validation images and scored on test images; in windows, only keys of the window count, for all of them alike.

Shapes: b images, W windows, H heads of one site, Q queries, K keys, R relations, A heads of all sites, S sites,
O offsets.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadSite
from mhprobe.measures.parts.places import Piece, attention, places_of
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention as figure
from mhprobe.report.result import Result
from mhprobe.stats.significance import Z95
from mhprobe.studies.panels.patch_relations import RELATIONS, palette, right_keys

Ways = dict[str, tuple[str, Tensor]]


class Scores(NamedTuple):
    """Each (images, ...): the share of an image's queries that were answered rightly; NaN where it asks none."""

    heads: Tensor  # (N, A, R)
    offsets: Tensor  # (N, S, O, R), O numbers (down, right) within the window or the grid
    even: Tensor  # (N, S, R)


def relations(material: Material, images: int = 1000, clusters: int = 8) -> dict[str, Result]:
    """A row per relation and way to answer: the best head, the best fixed offset of its block, an even draw.

    images: at most so many of each split. clusters: of colours. Table: relation, way, who (block and head, or the
    offset), head, score (mean over test images), low, high (95 % over images), images.
    """
    rows = [
        {"relation": relation, "way": way, "who": who, "head": head, **summary(values)}
        for relation, head, ways in best_of_each(material, images, clusters)
        for way, (who, values) in ways.items()
    ]
    return {"relations": Result(tables.from_rows(rows), figure.relation_scores(rows), of=material.of(images))}


def best_of_each(material: Material, images: int, clusters: int = 8) -> Iterator[tuple[str, int, Ways]]:
    """Per relation its name, the best head, and each way to answer with who it is and its (N,) test scores.

    A score is the share of an image's queries that were answered rightly, NaN where it asks none.
    """
    layout, data = material.layout, material.data
    finest = layout.sites[0].token_grid
    seen = (batch.images[batch.valid] for batch in data.batches("val", images=min(500, images)))
    centres = ranks.from_rank_zero(lambda: palette(list(seen), finest, clusters, material.seed))
    chosen, judged = (_scores(material, split, images, centres) for split in ("val", "test"))
    site_of = torch.tensor([number for number, _, _ in layout])
    for r, relation in enumerate(RELATIONS):
        # late blocks have few keys: what counts is how far a head is above an even draw in its block
        above = chosen.heads[..., r].nanmean(0) - chosen.even[..., r].nanmean(0)[site_of]
        if above.isnan().all():
            continue
        head = int(above.nan_to_num(-1).argmax())
        number, place, site = list(layout)[head]
        offset = int(chosen.offsets[:, number, :, r].nanmean(0).nan_to_num(-1).argmax())
        yield (
            relation,
            head,
            {
                "best head": (f"block {site.block}, head {place}", judged.heads[:, head, r]),
                "best fixed offset": (offset_words(offset, site), judged.offsets[:, number, offset, r]),
                "even draw": ("", judged.even[:, number, r]),
            },
        )


def summary(values: Tensor) -> dict[str, float]:
    """(N,) scores of images, NaN left out -> their mean with its 95 % normal interval, in [0, 1]."""
    known = values[~values.isnan()].double()
    mean = known.mean().item()
    half = Z95 * (known.std() / len(known) ** 0.5).item() if len(known) > 1 else float("nan")
    return {"score": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half), "images": len(known)}


def _scores(material: Material, split: str, images: int, centres: Tensor) -> Scores:
    """Over the images of a split, the same on every rank."""
    layout, centres = material.layout, centres.to(material.model.device)
    most = max((2 * extent(s)[0] - 1) * (2 * extent(s)[1] - 1) for s in layout.sites)
    parts: list[Scores] = []
    for batch, heads in recorded(material.model, material.walk(images, split)(), {"attn"}):
        shape = (len(batch.images), len(layout.sites), most, len(RELATIONS))
        found = Scores(
            torch.full((shape[0], layout.num_heads, shape[3]), torch.nan),
            torch.full(shape, torch.nan),
            torch.full((shape[0], shape[1], shape[3]), torch.nan),
        )
        for piece in attention("relations", layout, heads):
            pictures = batch.images[piece.images]
            right = right_keys(pictures, piece.site.token_grid, centres)
            rows = piece.images.cpu()
            for r, (of_heads, of_offsets, even) in enumerate(answers(piece, right)):
                found.heads[rows, layout.span(piece.number), r] = of_heads.float().cpu()
                found.offsets[rows, piece.number, : of_offsets.shape[1], r] = of_offsets.float().cpu()
                found.even[rows, piece.number, r] = even.float().cpu()
        parts.append(Scores(*(each[batch.valid.cpu()] for each in found)))
    mine = Scores(*(torch.cat(each) for each in zip(*parts, strict=True)))
    return Scores(*(torch.cat(each) for each in zip(*ranks.gather(mine), strict=True)))


def answers(piece: Piece, right: Tensor, candidates: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per relation the shares (b, H) of each head, (b, O) of each offset, (b,) of an even draw.

    right: (b, R, T, T) of ``right_keys``. candidates: (T, T) bool, keys that may be answered; None for all but the
    query itself. Queries without a right key among those in their window ask nothing.
    """
    places, token = piece.places, tokens_of(piece)
    others = places.patch_pairs & ~torch.eye(places.patch_pairs.shape[-1], dtype=torch.bool, device=right.device)
    if candidates is not None:
        others = others & candidates[token[:, :, None], token[:, None, :]]
    best_bWQH = piece.attn.masked_fill(~others[None, :, None], -1).argmax(-1).transpose(2, 3)
    offset_WQK, count = _offsets(piece.site, places.cell)
    offset_WQK = offset_WQK * others  # which may not be asked can be further apart
    for of_relation in right.unbind(1):
        true_bWQK = of_relation[:, token[:, :, None], token[:, None, :]] & others
        asked_bWQ = true_bWQK.any(-1)
        asked_b = asked_bWQ.sum((1, 2)).double()
        asked_b[asked_b == 0] = torch.nan
        hit_bH = true_bWQK.gather(-1, best_bWQH).sum((1, 2)) / asked_b[:, None]
        hit_bO = torch.zeros(len(true_bWQK), count, dtype=torch.float64, device=right.device)
        hit_bO.index_add_(1, offset_WQK.flatten(), true_bWQK.flatten(1).double())
        even_b = (true_bWQK.sum(-1) / others.sum(-1).clamp(min=1)).sum((1, 2)) / asked_b
        yield hit_bH, hit_bO / asked_b[:, None], even_b


def tokens_of(piece: Piece) -> Tensor:
    """(W, K) the patch at each place of a window, 0 where there is none."""
    return (piece.places.token - piece.site.prefix_tokens).clamp(min=0)


@functools.lru_cache(maxsize=256)
def extent(site: HeadSite) -> tuple[int, int]:
    """Rows and columns of what a query can see: its window, or the grid. A padded window that wraps around is wider."""
    places = places_of(site, torch.device("cpu"))
    apart = (places.cell[:, :, None] - places.cell[:, None, :]) * places.patch_pairs[..., None]
    down, right = apart.flatten(0, 2).amax(0).tolist()
    return down + 1, right + 1


def _offsets(site: HeadSite, cell_WK2: Tensor) -> tuple[Tensor, int]:
    """(W, Q, K) the number of the offset from query to key, and how many there are."""
    height, width = extent(site)
    down, right = (cell_WK2[:, None] - cell_WK2[:, :, None]).unbind(-1)
    return (down + height - 1) * (2 * width - 1) + right + width - 1, (2 * height - 1) * (2 * width - 1)


def offset_words(offset: int, site: HeadSite) -> str:
    """The number of an offset -> "1 up, 2 left"."""
    height, width = extent(site)
    down, right = offset // (2 * width - 1) - height + 1, offset % (2 * width - 1) - width + 1
    ways = (abs(down), "down" if down > 0 else "up"), (abs(right), "right" if right > 0 else "left")
    return ", ".join(f"{steps} {way}" for steps, way in ways if steps) or "itself"
