"""The place of a token, read linearly from what it holds: of tokens of high norm, and of the others.

Darcet et al., 2024, arXiv 2309.16588, Figure 5, fit a classifier over places; here least squares give row and column.
Shapes: b images, T patch tokens of the last block, C channels.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.measures.parts.kinds import high_norm
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded


def place_errors(material: Material, images: int) -> tuple[Tensor, Tensor]:
    """(n,) each: mean distance from the place that tokens tell, of those of high norm and of the others.

    Of an image, NaN where it has no tokens of high norm; 1 is the distance of the middle, which knows nothing. Fitted
    on so many validation images, read from so many test images. UserError for a network that has no such tokens.
    """
    site = material.layout.sites[-1]
    rows, columns = (torch.arange(length, dtype=torch.float64) for length in site.token_grid)
    place_T2 = torch.cartesian_prod(rows - rows.mean(), columns - columns.mean())
    guessing = float(place_T2.norm(dim=1).mean())

    def tokens(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, heads in recorded(material.model, material.walk(images, split)(), {"stream"}):
            stream = heads.need("stream", "places")[site.block].before[batch.valid]
            patches_bTC = stream[:, site.prefix_tokens :].cpu().double()
            yield torch.cat([patches_bTC, torch.ones_like(patches_bTC[..., :1])], 2), high_norm(patches_bTC)

    flat = (held_bTC.flatten(0, 1) for held_bTC, _ in tokens("val"))
    own = sum(held.T @ torch.cat([held, place_T2.repeat(len(held) // len(place_T2), 1)], 1) for held in flat)
    normal = torch.stack(ranks.gather(torch.as_tensor(own))).sum(0)
    ridge = 1e-6 * normal[:, :-2].diagonal().mean() * torch.eye(len(normal), dtype=torch.float64)
    weights_C2 = torch.linalg.solve(normal[:, :-2] + ridge, normal[:, -2:])
    errors = [_errors((held @ weights_C2 - place_T2).norm(dim=2) / guessing, loud) for held, loud in tokens("test")]
    loud, other = (torch.cat(each) for each in zip(*ranks.gather(torch.cat(errors, 1).unbind(0)), strict=True))
    if loud.isnan().all():
        raise UserError("no image has tokens of high norm in the last block.")
    return loud, other


def _errors(error_bT: Tensor, loud_bT: Tensor) -> Tensor:
    """(2, b) mean errors of loud tokens and of the others."""
    return torch.stack([(error_bT * kind).sum(1) / kind.sum(1) for kind in (loud_bT, ~loud_bT)])
