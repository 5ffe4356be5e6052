"""Does a head find a patch again in another view of it? (Clark et al. 2019, Table 2: does it find the antecedent?).

Two views stand side by side in one picture: the middle half of an image, and the same moved down by some rows of
patches, which come in again at the top; on request also flipped left to right. Every patch is a query, its candidates
are the patches of the other view, and one of them shows the same: that is the right one. A head's answer is the
candidate that it attends to most. How far the second view is moved is drawn for each image, or an offset would know
the answer. The head, and the offset, are chosen on validation images and scored on test images.

Where attention is in windows only candidates of the window count, and most queries have no right one there.

Shapes: b images, T = h w patches of a site, A heads of all sites, S sites, O offsets, N images of a split.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.parts.places import Piece, attention
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention as figure
from mhprobe.report.result import Result
from mhprobe.studies.panels.relations import answers, extent, offset_words, summary, tokens_of

RELATION = "the patch in the other view"
WITHOUT_HEADS = ("same place", "nearest patch", "most similar pixels")


class Scores(NamedTuple):
    """Share of an image's queries that were answered rightly, in float64; NaN at a site that asks none."""

    heads: Tensor  # (N, A)
    offsets: Tensor  # (N, S, O)
    even: Tensor  # (N, S)
    plain: Tensor  # (N, S, 3), in the order of WITHOUT_HEADS


def two_views(material: Material, images: int = 500, mirror: bool = False) -> dict[str, Result]:
    """A row per way to answer: the best head, that of an untrained network, the best offset, and no head at all.

    images: of each split, at most. mirror: whether the second view is also flipped left to right. Without it the most
    similar pixels are right by themselves, up to what a patch has in common with others.
    Table: relation, way, who, head (flat index), score (mean over test images), low, high (95 % over images), images.
    UserError for a grid that has no two equal halves.
    """
    layout = material.layout
    rows: list[dict[str, Any]] = []
    for way, model in (("best head", material.model), ("best head, untrained", material.untrained())):
        chosen, judged = (_scores(material, model, split, images, mirror) for split in ("val", "test"))
        site_of = torch.tensor([number for number, _, _ in layout])
        above = chosen.heads.nanmean(0) - chosen.even.nanmean(0)[site_of]
        head = int(above.nan_to_num(-1).argmax())
        number, place, site = list(layout)[head]
        who = f"block {site.block}, head {place}"
        rows.append({"relation": RELATION, "way": way, "who": who, "head": head, **summary(judged.heads[:, head])})
        if model is material.model:
            offset = int(chosen.offsets[:, number].nanmean(0).nan_to_num(-1).argmax())
            ways = {"best fixed offset": (offset_words(offset, site), judged.offsets[:, number, offset])}
            ways |= {name: ("", judged.plain[:, number, each]) for each, name in enumerate(WITHOUT_HEADS)}
            ways |= {"even draw": ("", judged.even[:, number])}
    for way, (who, values) in ways.items():
        rows.append({"relation": RELATION, "way": way, "who": who, "head": "", **summary(values)})
    return {"views": Result(tables.from_rows(rows), figure.relation_scores(rows), of=material.of(images))}


def side_by_side(pictures: Tensor, rows: int, moved: Tensor, mirror: bool = False) -> Tensor:
    """(b, 3, height, width) -> the same shape: the middle half of each picture twice, the second moved down.

    rows: of patches, of which the second view is moved by ``moved`` (b,).
    """
    height, width = pictures.shape[-2:]
    view = pictures[..., width // 4 : width // 4 + width // 2]
    second = torch.stack([
        one.roll(int(by) * (height // rows), dims=1) for one, by in zip(view, moved.tolist(), strict=True)
    ])  # fmt: skip
    return torch.cat([view, second.flip(-1) if mirror else second], -1)


def other_view(grid: tuple[int, int], moved: Tensor, mirror: bool = False) -> Tensor:
    """(b, T) the patch of the other view that shows what this one shows. moved: (b,) rows of this grid."""
    height, width = grid
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    second = column >= width // 2
    across = (width - 1 - column) if mirror else torch.where(second, column - width // 2, column + width // 2)
    down = torch.where(second, -moved[:, None, None], moved[:, None, None])
    return ((row + down) % height * width + across).flatten(1)


def _scores(material: Material, model: nn.Module, split: str, images: int, mirror: bool) -> Scores:
    """Over the images of a split, the same on every rank."""
    layout, sites = material.layout, material.layout.sites
    coarsest = min(site.token_grid[0] for site in sites)
    for site in sites:
        if site.token_grid[1] % 2 or site.token_grid[0] % coarsest:
            raise UserError(
                f"two_views: {site.name} has a grid of {site.token_grid[0]} x {site.token_grid[1]} patches, expected "
                f"an even number of columns and a multiple of {coarsest} rows. Use another size of images."
            )
    most = max((2 * extent(site)[0] - 1) * (2 * extent(site)[1] - 1) for site in sites)
    generator = torch.Generator().manual_seed(material.seed)
    moved_N = torch.randint(coarsest, (material.data.sizes[split],), generator=generator)
    parts: list[Scores] = []
    for batch, heads in recorded(model, _views(material, split, images, coarsest, moved_N, mirror), {"attn"}):
        count, moved = len(batch.images), moved_N[batch.index.cpu()]
        found = Scores(*(
            torch.full(shape, torch.nan, dtype=torch.float64)
            for shape in ((count, layout.num_heads), (count, len(sites), most), (count, len(sites)),
                          (count, len(sites), len(WITHOUT_HEADS)))
        ))  # fmt: skip
        for piece in attention("two_views", layout, heads):
            _score(found, piece, layout, batch.images, moved, coarsest, mirror)
        parts.append(Scores(*(each[batch.valid.cpu()] for each in found)))
    mine = Scores(*(torch.cat(each) for each in zip(*parts, strict=True)))
    return Scores(*(torch.cat(each) for each in zip(*ranks.gather(mine), strict=True)))


def _views(material: Material, split: str, images: int, rows: int, moved: Tensor, mirror: bool) -> Iterator[Batch]:
    for batch in material.walk(images, split)():
        yield batch._replace(images=side_by_side(batch.images, rows, moved[batch.index.cpu()], mirror))


def _score(
    found: Scores, piece: Piece, layout: HeadLayout, pictures: Tensor, moved: Tensor, coarsest: int, mirror: bool
) -> None:
    """Write what one piece of attention says into ``found``."""
    site, rows, device = piece.site, piece.images.cpu(), piece.attn.device
    grid = site.token_grid
    true_bT = other_view(grid, moved[rows] * (grid[0] // coarsest), mirror).to(device)
    right = F.one_hot(true_bT, grid[0] * grid[1]).bool()[:, None]
    across = torch.arange(grid[0] * grid[1], device=device) % grid[1] >= grid[1] // 2
    candidates = across[:, None] != across
    ((of_heads, of_offsets, even),) = answers(piece, right, candidates)
    found.heads[rows, layout.span(piece.number)] = of_heads.cpu()
    found.offsets[rows, piece.number, : of_offsets.shape[1]] = of_offsets.cpu()
    found.even[rows, piece.number] = even.cpu()
    token, support = tokens_of(piece), piece.places.patch_pairs
    here = (support[None] & (true_bT[:, token][..., None] == token[:, None, :])).any(
        -1
    )  # the right one is in the window
    asked = here.sum((1, 2)).double()
    asked[asked == 0] = torch.nan
    for number, answer_bT in enumerate(without_heads(pictures[piece.images], site, candidates)):
        hits = (answer_bT == true_bT)[:, token] & here
        found.plain[rows, piece.number, number] = (hits.sum((1, 2)) / asked).cpu()


def without_heads(pictures: Tensor, site: HeadSite, candidates: Tensor) -> Iterator[Tensor]:
    """Yield (b, T) the answers that need no network, in the order of WITHOUT_HEADS.

    pictures: (b, 3, height, width), both views. candidates: (T, T) bool.
    """
    (height, width), device = site.token_grid, pictures.device
    number = torch.arange(height * width, device=device)
    row, column = number // width, number % width
    same = row * width + (column + width // 2) % width
    far = (row[:, None] - row).square() + (column[:, None] - column).square()
    nearest = far.double().masked_fill(~candidates, torch.inf).argmin(1)
    yield from (answer.expand(len(pictures), -1) for answer in (same, nearest))
    tall, wide = pictures.shape[-2] // height, pictures.shape[-1] // width
    patches = F.unfold(pictures.double(), (tall, wide), stride=(tall, wide)).mT  # (b, T, pixels)
    yield torch.cdist(patches, patches).masked_fill(~candidates, torch.inf).argmin(-1)
