"""Heads across two views of an image: patches found again in the other view, and heads matched by their outputs.

Patches: for Clark et al. 2019, Table 2, where heads find an antecedent. One picture has two views
side by side: the middle half of an image, and the same moved down in a circle by some rows of
patches, drawn for each image. Every patch is a query, its candidates are the patches of the other
view, and the one that shows the same is right. A head's answer is the candidate that it attends to
most. The head and the offset are chosen on validation images and scored on test images. In windows
only candidates of the window count.

Heads: the second view is the image flipped left to right, with patches put back in their places.
Heads are compared by linear centred kernel alignment (Kornblith et al. 2019, arXiv 1905.00414) of
their outputs over the patches of all images. A head corresponds to itself if no other head of its
block on the other view is more like it.

Shapes: b, B images, T = h w patches of a site, N images of a split, H heads of one site, D head
width.
"""

import itertools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadSite
from mhprobe.lab.papers.panels.relations import (
    RIGHTLY,
    Ways,
    best_answers,
    mean_with_interval,
    patch_pixels,
    scored_images,
    tokens_of,
)
from mhprobe.measures.cka import linear_cka
from mhprobe.measures.parts.moments import Moments
from mhprobe.measures.parts.places import Piece, places_of
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention, maps
from mhprobe.report.result import Result

RELATION = "the patch in the other view"
WITHOUT_HEADS = ("same place", "nearest patch", "most similar pixels")
AT_ONCE = 16  # images whose patches are compared with each other


def two_views(material: Material, images: int = 500) -> dict[str, Result]:
    """Score ways to answer: the best head, that of an untrained network, the best offset, and baselines.

    images: of each split, at most. The most similar pixels are nearly always right. UserError for a
    grid that has no two equal halves. Table: relation, way, who, head (flat index), score (mean
    over test images), low, high (95 % over images), images.
    """
    layout, views = (
        material.layout,
        {split: Views(material, split, images) for split in ("val", "test")},
    )

    def best_of(model: nn.Module) -> tuple[int, Ways]:
        chosen, judged = (
            scored_images("two_views", layout, model, of(), of.right) for of in views.values()
        )
        return best_answers(layout, chosen, judged)

    head, ways = best_of(material.model)
    other, untrained = best_of(material.untrained())
    plain = views["test"].plain(list(layout)[head][2])
    scores: list[tuple[str, int | str, str, Tensor]] = [
        ("best head", head, *ways["best head"]),
        ("best head, untrained", other, *untrained["best head"]),
        ("best fixed offset", "", *ways["best fixed offset"]),
        *((way, "", "", values) for way, values in zip(WITHOUT_HEADS, plain.T, strict=True)),
        ("even draw", "", *ways["even draw"]),
    ]
    rows = [
        {"relation": RELATION, "way": w, "who": who, "head": h, **mean_with_interval(of)}
        for w, h, who, of in scores
    ]
    result = Result(tables.from_rows(rows), attention.relation_scores(rows), of=material.of(images))
    return {"views": result.saying(*RIGHTLY)}


class Views:
    """Walk over images of a split, each as two views side by side.

    UserError as of ``two_views``.
    """

    def __init__(self, material: Material, split: str, images: int) -> None:
        sites = material.layout.sites
        self.rows = min(site.token_grid[0] for site in sites)
        for site in sites:
            if site.token_grid[1] % 2 or site.token_grid[0] % self.rows:
                raise UserError(
                    f"two_views: {site.name} has a grid of {' x '.join(map(str, site.token_grid))} "
                    "patches, expected "
                    f"an even number of columns and a multiple of {self.rows} rows. Use another "
                    "size of images."
                )
        self.walk = material.walk(images, split)
        generator = torch.Generator().manual_seed(material.seed)
        self.moved_N = torch.randint(self.rows, (material.data.sizes[split],), generator=generator)

    def __call__(self) -> Iterator[Batch]:
        for batch in self.walk():
            moved = self.moved_N[batch.index.cpu()]
            yield batch._replace(images=shifted_pairs(batch.images, self.rows, moved))

    def true(self, index: Tensor, site: HeadSite) -> Tensor:
        """(b, T) number of the right patch for each patch of these images."""
        moved = self.moved_N[index.cpu()] * (site.token_grid[0] // self.rows)
        return other_view(site.token_grid, moved).to(index.device)

    def right(self, batch: Batch, piece: Piece) -> tuple[Tensor, Tensor]:
        """(b, 1, T, T) bool right keys and (T, T) candidates, for ``relations.scored_answers``."""
        true_bT = self.true(batch.index[piece.images], piece.site)
        right_b1TT = F.one_hot(true_bT, math.prod(piece.site.token_grid)).bool()[:, None]
        return right_b1TT, other_half(piece.site, true_bT.device)

    def plain(self, site: HeadSite) -> Tensor:
        """(N, 3) scores of images for each of WITHOUT_HEADS; NaN for an image without queries."""
        parts: list[Tensor] = []
        for batch in self():
            places = places_of(site, batch.images.device)
            opposite = other_half(site, batch.images.device)
            token = tokens_of(places, site)
            for images in batch.valid.nonzero().flatten().split(AT_ONCE):
                true_bT = self.true(batch.index[images], site)
                # the right one is in the window
                here = (
                    places.patch_pairs & (true_bT[:, token][..., None] == token[:, None, :])
                ).any(-1)
                total = here.sum((1, 2)).double()
                answers = torch.stack(list(without_heads(batch.images[images], site, opposite)), 1)
                hits = ((answers == true_bT[:, None])[..., token] & here[:, None]).sum((2, 3))
                parts.append((hits / total.where(total > 0, torch.nan)[:, None]).cpu())
        return torch.cat(ranks.gather(torch.cat(parts)))


def other_half(site: HeadSite, device: torch.device) -> Tensor:
    """(T, T) bool, True for candidates: keys of the other view than the query's."""
    second = (
        torch.arange(math.prod(site.token_grid), device=device) % site.token_grid[1]
        >= site.token_grid[1] // 2
    )
    return second[:, None] != second


def shifted_pairs(pictures: Tensor, rows: int, moved: Tensor) -> Tensor:
    """(b, 3, height, width) the middle half of each picture twice, the second moved down by ``moved`` (b,) of rows."""
    height, width = pictures.shape[-2:]
    view = pictures[..., width // 4 : width // 4 + width // 2]
    shifts = [by * (height // rows) for by in moved.tolist()]
    second = torch.stack([one.roll(by, dims=1) for one, by in zip(view, shifts, strict=True)])
    return torch.cat([view, second], -1)


def other_view(grid: tuple[int, int], moved: Tensor) -> Tensor:
    """(b, T) number of the patch that shows the same in the other view.

    moved: (b,) rows of this grid.
    """
    height, width = grid
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    second = column >= width // 2
    across = torch.where(second, column - width // 2, column + width // 2)
    down = torch.where(second, -moved[:, None, None], moved[:, None, None])
    return ((row + down) % height * width + across).flatten(1)


def without_heads(pictures: Tensor, site: HeadSite, candidates: Tensor) -> Iterator[Tensor]:
    """Yield (b, T) answers of WITHOUT_HEADS.

    pictures: (b, 3, height, width) of both views. candidates: (T, T) bool.
    """
    (height, width), device = site.token_grid, pictures.device
    number = torch.arange(height * width, device=device)
    row, column = number // width, number % width
    same = row * width + (column + width // 2) % width
    far = (row[:, None] - row).square() + (column[:, None] - column).square()
    nearest = far.double().masked_fill(~candidates, torch.inf).argmin(1)
    yield from (answer.expand(len(pictures), -1) for answer in (same, nearest))
    patches = patch_pixels(pictures.double(), site.token_grid)
    yield torch.cdist(patches, patches).masked_fill(~candidates, torch.inf).argmin(-1)


def correspondence(material: Material, images: int = 500) -> dict[str, Result]:
    """Compare every head with itself and the others of its block, across two views.

    images: test images, at most.

    Table: itself (likeness on the other view), best_other (that of the most alike other head of its
    block), best_other_index, corresponds (1 where itself is larger), chance.
    """
    layout = material.layout
    moments = [Moments.zeros(1, 2 * site.channels, material.model.device) for site in layout.sites]
    batches, again = itertools.tee(material.walk(images)())
    flipped = (batch._replace(images=batch.images.flip(-1)) for batch in again)  # left to right
    walks = (recorded(material.model, view) for view in (batches, flipped))
    for (batch, heads), (_, mirrored) in zip(*walks, strict=True):
        for number, site in enumerate(layout.sites):
            one, other = (
                view.z[number][batch.valid, site.prefix_tokens :].flatten(2)
                for view in (heads, mirrored)
            )
            moments[number].add(
                torch.cat([one.flatten(0, 1), other_way(other, site).flatten(0, 1)], 1)
            )
    alike = [
        between(sums, site.num_heads).cpu()
        for sums, site in zip(moments, layout.sites, strict=True)
    ]
    others = [cka.clone().fill_diagonal_(-torch.inf) for cka in alike]
    itself = torch.cat([cka.diagonal() for cka in alike])
    best = torch.cat([cka.amax(1) for cka in others])
    columns = {
        "itself": itself,
        "best_other": best.where(best.isfinite(), torch.nan),  # of a block's only head
        "best_other_index": torch.cat([cka.argmax(1) for cka in others]),
        "corresponds": (itself > best.clamp(min=-1)).long(),
        "chance": torch.tensor([1 / site.num_heads for _, _, site in layout]).double(),
    }
    result = Result(
        tables.per_head(layout, columns),
        maps.correspondence(layout, columns),
        of=material.of(images),
    )
    return {
        "views": result.saying(
            "CKA of a head with itself across two views", "it does the same on both"
        )
    }


def other_way(rows: Tensor, site: HeadSite) -> Tensor:
    """(B, T, channels) outputs of a flipped image, each patch back in its place."""
    return rows.unflatten(1, site.token_grid).flip(2).flatten(1, 2)


def between(moments: Moments, heads: int) -> Tensor:
    """(H, H) linear CKA of heads across views.

    moments: of this rank's rows of both views, (N, 2 H D).
    """
    every = Moments(*map(ranks.total, vars(moments).values()))
    return linear_cka(every.parts(every.total.shape[1] // (2 * heads))(None))[:heads, heads:]
