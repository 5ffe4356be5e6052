"""By Fisher information: the heads go whose removal raises the loss least, to second order, seen from the whole model.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", arXiv 2204.09656, sections 4.1 and 4.2. At
a converged model the loss rises by about (1 - m)^T F (1 - m) / 2 when heads are masked. F is the empirical Fisher
information of the gates: the mean over images of g g^T, with g the slope of the image's loss along the share of a head
that is let through. A head whose gate is 0 costs nothing.

1. Search: with F's diagonal alone, the units of least F_hh go; under a target in FLOPs or time, of least F_hh per what
   they save.
2. Rearrangement: with F's diagonal blocks, one per layer, heads change places within their layer as long as an
   exchange lowers the sum: it sees that of two redundant heads only one can go. Every layer keeps its number of heads.

The path leads to the rearranged set of its last step. With more steps another set may be best, and its path may begin
with other units.

Where we differ: all of F that is needed is summed in float64; the best exchange is made first, until none helps (the
paper goes through the masked heads once); MLP neurons are left alone.

Shapes: A heads of all sites, H heads of one site, U units.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path, Units


@dataclass(frozen=True)
class Fisher(Order):
    """Mask the units of least Fisher information first.

    rearranged: also exchange heads within each layer; where units are single heads.
    """

    rearranged: bool = True

    def paths(self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None) -> list[Path]:
        """The one path of least Fisher information; ties go to the lower unit index. UserError if it is not finite."""
        length = units.steps(steps)
        nothing = torch.zeros(layout.num_heads, dtype=torch.bool)
        if not length or not units.candidates([]):
            return [units.path([])]
        exchange = self.rearranged and bool((units.masks.sum(1) == 1).all())
        fisher = evaluate.fisher(nothing) if exchange else evaluate.slopes(nothing)[1].diag()
        _check(layout, fisher.diagonal())
        price_U = units.masks.double() @ fisher.diagonal() / _savings(units)
        order = units.chosen(length, lambda order, left: min(left, key=lambda unit: float(price_U[unit])))
        if exchange:
            order = _rearranged(units, layout, fisher, order, price_U)
        return [units.path(order)]


def rearrange(layout: HeadLayout, fisher: Tensor, mask: Tensor, among: Tensor | None = None) -> Tensor:
    """(A,) bool mask with as many heads per layer, after exchanges that lower (1 - m)^T F (1 - m) in each layer.

    among: (A,) bool, the heads that may be masked; None for all.
    """
    mask = mask.clone()
    for number in range(len(layout.sites)):
        span = layout.span(number)
        free = None if among is None else among[span]
        mask[span] = _exchanged(fisher[span, span], mask[span], free)
    return mask


def _rearranged(units: Units, layout: HeadLayout, fisher: Tensor, order: list[int], price_U: Tensor) -> list[int]:
    """The units of the rearranged set, cheapest first."""
    mask = rearrange(layout, fisher, units.masks[order].any(0), units.masks.any(0))
    chosen = torch.nonzero((units.masks & mask).any(1)).flatten().tolist()
    return sorted(chosen, key=lambda unit: float(price_U[unit]))


def _savings(units: Units) -> Tensor:
    """(U,) what each unit saves of the target's cost; 1 without a target, or if it counts heads."""
    target = None if units.limits is None else units.limits.target
    if target is None or target.unit == "heads":
        return torch.ones(len(units), dtype=torch.float64)
    return (target.cost(units.masks & False) - target.cost(units.masks)).clamp(min=1e-12)


def _check(layout: HeadLayout, diagonal_A: Tensor) -> None:
    bad = torch.nonzero(~diagonal_A.isfinite()).flatten().tolist()
    if bad:
        _, head, site = list(layout)[bad[0]]
        raise UserError(
            f"masking order fisher: head {head} of {site.name} has the Fisher information {float(diagonal_A[bad[0]])} "
            f"(and {len(bad) - 1} more are not finite), expected a number for every head. Do the weights hold NaN?"
        )


def _exchanged(block_HH: Tensor, mask_H: Tensor, free_H: Tensor | None) -> Tensor:
    """The same number of heads masked, until no exchange of a masked head for a kept one lowers the sum over both."""
    diagonal = block_HH.diagonal()
    closed_H = torch.zeros_like(mask_H) if free_H is None else ~free_H
    while mask_H.any() and not mask_H.all():
        with_masked_H = block_HH @ mask_H.double()
        # taking head j out and head i in: F_ii + F_jj - 2 F_ij + 2 (row i - row j) of what is masked
        out_H = diagonal - 2 * with_masked_H
        into_H = diagonal + 2 * with_masked_H
        change = into_H[:, None] + out_H[None, :] - 2 * block_HH
        change = change.masked_fill((mask_H | closed_H)[:, None] | ~mask_H[None, :], math.inf)
        best = int(change.argmin())
        if not change.flatten()[best] < -1e-12 * block_HH.abs().max():
            break
        mask_H = mask_H.clone()
        mask_H[best // len(mask_H)], mask_H[best % len(mask_H)] = True, False
    return mask_H
