"""Heads matched across two views of an image by their outputs.

The second view is the image flipped left to right, with patches put back in their places. Heads are compared by linear
centred kernel alignment (Kornblith et al. 2019, arXiv 1905.00414) of their outputs over the patches of all images. A
head corresponds to itself if no other head of its block on the other view is more like it; by chance one of H does.

Shapes: B images, T patches, H heads of one site, D head width.
"""

import itertools
import math

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadSite
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result


def correspondence(material: Material, images: int = 500) -> dict[str, Result]:
    """Compare every head with itself and the others of its block, across two views. images: test images, at most.

    Table: itself (likeness on the other view), best_other (that of the most alike other head of its block),
    best_other_index, corresponds (1 where itself is larger), chance.
    """
    layout = material.layout
    zero = torch.zeros((), dtype=torch.float64, device=material.model.device)
    products = [zero.new_zeros(2 * site.channels, 2 * site.channels) for site in layout.sites]
    totals = [zero.new_zeros(2 * site.channels) for site in layout.sites]
    batches, again = itertools.tee(material.walk(images)())
    flipped = (batch._replace(images=batch.images.flip(-1)) for batch in again)  # left to right
    walks = (recorded(material.model, each) for each in (batches, flipped))
    for (batch, heads), (_, mirrored) in zip(*walks, strict=True):
        for number, site in enumerate(layout.sites):
            one, other = (view.z[number][batch.valid, site.prefix_tokens :].flatten(2) for view in (heads, mirrored))
            both = torch.cat([one.flatten(0, 1), other_way(other, site).flatten(0, 1)], 1).double()
            products[number] += both.mT @ both
            totals[number] += both.sum(0)
    of = material.of(images)
    alike = [
        between(ranks.total(product), ranks.total(total), of.images * math.prod(site.token_grid), site.num_heads).cpu()
        for product, total, site in zip(products, totals, layout.sites, strict=True)
    ]
    others = [values.clone().fill_diagonal_(-torch.inf) for values in alike]
    itself, best = torch.cat([each.diagonal() for each in alike]), torch.cat([each.amax(1) for each in others])
    columns = {
        "itself": itself,
        "best_other": best.where(best.isfinite(), torch.nan),  # of a block's only head
        "best_other_index": torch.cat([each.argmax(1) for each in others]),
        "corresponds": (itself > best.clamp(min=-1)).long(),
        "chance": torch.tensor([1 / site.num_heads for _, _, site in layout]).double(),
    }
    return {"views": Result(tables.per_head(layout, columns), figure.correspondence(layout, columns), of=of)}


def other_way(rows: Tensor, site: HeadSite) -> Tensor:
    """(B, T, channels) outputs of a flipped image, each patch back in its place."""
    return rows.unflatten(1, site.token_grid).flip(2).flatten(1, 2)


def between(product: Tensor, total: Tensor, rows: int, heads: int) -> Tensor:
    """(H, H) linear CKA of heads across views. product: (2 H D, 2 H D) of both views' rows; total: (2 H D,) sums."""
    centred = product - total[:, None] * total / rows
    blocks = centred.unflatten(0, (2, heads, -1)).unflatten(3, (2, heads, -1))  # (2, H, D, 2, H, D)
    one, other = (torch.stack([blocks[v, h, :, v, h].norm() for h in range(heads)]) for v in (0, 1))
    across = blocks[0, :, :, 1].permute(0, 2, 1, 3).square().sum((2, 3))
    return across / (one[:, None] * other).clamp(min=1e-30)
