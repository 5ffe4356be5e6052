"""Attention over the grid of patches (Byun & Kim, "What does the multi-head do?").

Masks, their Figure 5: the weight on each patch, from the class token where the logits are read off
it, else the mean over queries; the mean or the maximum over the heads of a block. The image has the
other patches darkened.

The covering range, in two dimensions: the mean attention at each offset from a query's favourite
key, the one of largest weight, over queries that have a key there. Prefix tokens and padding are
left out, and rows renormalised.

Shapes: B images (b in a batch), W windows, H heads of one site, Q queries, K keys, h x w patches,
Y, X offsets, A heads of all sites.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe import ranks
from mhprobe.errors import one_of
from mhprobe.framework.questions.material import Material
from mhprobe.maps.attention import Attention
from mhprobe.measures.parts.places import Piece, attention_in_pieces
from mhprobe.recording.looks import looks
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention as offsets
from mhprobe.report.figures import maps as figure
from mhprobe.report.report import Result, Sample

OverHeads = Literal["mean", "max"]


def attention_masks(
    material: Material, images: int = 2, over_heads: OverHeads = "mean"
) -> dict[str, Result]:
    """Draw masks and maps of test images, evenly from all, block by block.

    over_heads: "mean" or "max" over the heads of a block; UserError for another. Table: image
    (position in the test split), label, site, block, least and greatest weight of a patch, as
    multiples of even attention to all tokens.
    """
    one_of("attention_masks", "over_heads", over_heads, OverHeads)
    layout, data = material.layout, material.data
    batch = data.some("test", images, material.model.device)
    asking = [Attention().who_looks(site) for site in layout.sites]
    received = looks(material.model, batch.images, layout, asking)
    masks: list[Tensor] = []  # per site (B, h, w), 1 for even attention
    for looked, site in zip(received, layout.sites, strict=True):
        of_heads = looked.double().cpu()
        even = 1 / (site.prefix_tokens + of_heads[0, 0].numel())
        masks.append((of_heads.mean(1) if over_heads == "mean" else of_heads.amax(1)) / even)
    positions = batch.index.tolist()
    labels = [data.class_names[label] for label in batch.labels.tolist()]
    rows: list[list[Any]] = [
        [
            position,
            labels[number],
            site.name,
            site.block,
            mask[number].min().item(),
            mask[number].max().item(),
        ]
        for number, position in enumerate(positions)
        for site, mask in zip(layout.sites, masks, strict=True)
    ]
    table = tables.Table(["image", "label", "site", "block", "least", "greatest"], rows)
    pictures = data.stored("test", positions).images.float() / 255
    titles = [
        f"image {position}: {label}" for position, label in zip(positions, labels, strict=True)
    ]
    panel = figure.attention_masks(
        pictures, titles, [f"block {site.block}" for site in layout.sites], masks
    )
    meaning = "attention to a patch, in multiples of even attention", "heads look at it more"
    return {"masks": Result(table, panel, of=Sample(len(positions), "test")).saying(*meaning)}


def covering(material: Material, images: int = 500) -> dict[str, Result]:
    """Draw a covering range per head.

    images: test images, at most. Table: head, block, down, right, attention.
    """
    layout = material.layout
    tall, wide = (max(site.token_grid[axis] for site in layout.sites) for axis in (0, 1))
    size = 2 * tall - 1, 2 * wide - 1  # offsets down and across, the middle one being 0
    sums = torch.zeros(
        2, layout.num_heads, *size, dtype=torch.float64, device=material.model.device
    )
    for _, heads in recorded(material.model, material.walk(images)(), {"attn"}):
        for piece in attention_in_pieces("covering range", layout, heads, whole=True):
            sums[:, layout.span(piece.number)] += around_the_favourite(piece, size)
    mass, queries = ranks.total(sums).cpu()
    # NaN where no favourite key has such a neighbour
    mean = mass / queries.masked_fill(queries == 0, torch.nan)
    middle = size[0] // 2, size[1] // 2
    there = queries.clone()
    there[:, *middle] = 0  # the favourite key itself would outshine the rest
    columns = {"counts": mass, "exists": there, "positional": torch.zeros(layout.num_heads)}
    words = "head (the middle, the favourite key, is left out)", "mean attention"
    panel = offsets.offset_maps(layout, columns, "mean attention", words=words)
    blocks = [site.block for _, _, site in layout]
    rows = [
        [head, blocks[head], y - middle[0], x - middle[1], mean[head, y, x].item()]
        for head, y, x in (~mean.isnan()).nonzero().tolist()
    ]
    table = tables.Table(["head", "block", "down", "right", "attention"], rows)
    return {
        "map": Result(table, panel, of=material.of(images)).saying(
            "mean attention", "the head looks there more"
        )
    }


def around_the_favourite(piece: Piece, size: tuple[int, int]) -> Tensor:
    """(2, H, Y, X) sum of attention at each offset from the favourite key, and number of queries with a key there."""
    pairs_WKK = piece.places.patch_pairs
    row_WHKK, seen_WHK = _by_favourites(piece)
    both = (
        torch.stack([row_WHKK, seen_WHK[..., None] * pairs_WKK[:, None]]).transpose(1, 2).flatten(2)
    )
    sums = both.new_zeros(*both.shape[:2], size[0] * size[1])
    sums.index_add_(
        2, (piece.places.offsets(size) * pairs_WKK).flatten(), both
    )  # others can be further apart
    return sums.unflatten(2, size)


def _by_favourites(piece: Piece) -> tuple[Tensor, Tensor]:
    """(W, H, K, K) sums over images of rows by their favourite key, patches alone, and (W, H, K) their number.

    Of n keys that share a row's largest weight each has 1/n of it.
    """
    windows, heads, count = piece.patch_rows.shape[1:4]
    # a sparse product makes no copy of a row for each of its keys where all are equal
    best = piece.favourites
    row = best.row(piece.attn.shape)
    centre = (best.window * heads + best.head) * count + best.key
    size = (windows * heads * count, piece.attn[..., 0].numel())
    places = torch.stack([centre, row])
    sums = torch.sparse_coo_tensor(places, best.share, size, check_invariants=False)
    counted = pad(piece.patch_rows.flatten(0, 3), (0, 1), value=1.0)  # the last column counts rows
    both = (sums @ counted).view(windows, heads, count, -1)
    return both[..., :-1], both[..., -1]
