"""Fisher mask search: which heads go so that the loss rises least, to second order, seen from the whole model.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", arXiv 2204.09656, sections 4.1 and 4.2.
At a converged model the loss rises by about (1 - m)^T F (1 - m) / 2 when heads are masked, where F is the empirical
Fisher information of the gates, the mean over images of g g^T with g = d(loss of the image)/d(gate).

1. Search: with F's diagonal alone, the heads of least F_hh go (under a budget of FLOPs, of least F_hh per FLOP).
2. Rearrangement: with F's diagonal blocks, one per layer, heads change places within their layer as long as an
   exchange lowers the sum: it sees that of two redundant heads only one can go. Every layer keeps its number of heads.

Where we differ: all of F that is needed is summed in float64; the best exchange is made first, until none helps (the
paper goes through the masked heads once); MLP neurons are left alone.

Shapes: A heads of all sites, H heads of one site, B images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, wide
from mhprobe.recording.record import record


def gate_fisher(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """(A, A) float64, the mean over valid images of g g^T at the present gates, in nats^2."""
    layout = attach(model).layout
    total = torch.zeros(layout.num_heads, layout.num_heads, dtype=torch.float64)
    images = 0
    for batch in batches:
        heads = record(model, batch.images, batch.labels, {"grad"}, batch.valid, batch.index)
        assert heads.grad is not None
        pairs = zip(heads.z, heads.grad, strict=True)
        slope_BA = torch.cat([(wide(z) * wide(grad)).sum((1, 3), dtype=torch.float64) for z, grad in pairs], dim=1)
        slope_BA = slope_BA[batch.valid]
        total += (slope_BA.mT @ slope_BA).cpu()
        images += len(slope_BA)
    if not images:
        raise UserError("fisher: no images to estimate it from, expected at least one.")
    return total / images


def search(fisher: Tensor, remove: int) -> Tensor:
    """(A,) bool mask of the ``remove`` heads of least F_hh; ties go to the lower index."""
    mask = torch.zeros(len(fisher), dtype=torch.bool)
    mask[fisher.diagonal().argsort(stable=True)[:remove]] = True
    return mask


def search_flops(fisher: Tensor, flops: Tensor, save: float) -> Tensor:
    """(A,) bool mask of heads that together cost at least ``save``, those of least F_hh per FLOP first.

    flops: (A,) what each head costs. Raises UserError with what can be saved at most; one head always stays.
    """
    order = (fisher.diagonal() / flops).argsort(stable=True)[:-1]
    saved = flops[order].double().cumsum(0)
    reached = torch.nonzero(saved >= save).flatten()
    if not len(reached):
        most = saved[-1].item() if len(saved) else 0.0
        raise UserError(
            f"fisher: removing heads saves at most {most:.4g} FLOPs per image (one head has to stay), got a target of "
            f"{save:.4g}; the nearest is {most:.4g}."
        )
    mask = torch.zeros(len(fisher), dtype=torch.bool)
    mask[order[: int(reached[0]) + 1]] = True
    return mask


def rearrange(layout: HeadLayout, fisher: Tensor, mask: Tensor) -> Tensor:
    """(A,) bool mask with as many heads per layer, after exchanges that lower (1 - m)^T F (1 - m) in each layer."""
    mask = mask.clone()
    for number in range(len(layout.sites)):
        span = layout.span(number)
        mask[span] = _exchanged(fisher[span, span], mask[span])
    return mask


def _exchanged(block_HH: Tensor, mask_H: Tensor) -> Tensor:
    """The same number of heads masked, until no exchange of a masked head for a kept one lowers the sum over both."""
    diagonal = block_HH.diagonal()
    while mask_H.any() and not mask_H.all():
        with_masked_H = block_HH @ mask_H.double()
        # taking head j out and head i in: F_ii + F_jj - 2 F_ij + 2 (row i - row j) of what is masked
        out_H = diagonal - 2 * with_masked_H
        into_H = diagonal + 2 * with_masked_H
        change = into_H[:, None] + out_H[None, :] - 2 * block_HH
        change = change.masked_fill(mask_H[:, None] | ~mask_H[None, :], math.inf)
        best = int(change.argmin())
        if not change.flatten()[best] < -1e-12 * block_HH.abs().max():
            break
        mask_H = mask_H.clone()
        mask_H[best // len(mask_H)], mask_H[best % len(mask_H)] = True, False
    return mask_H
