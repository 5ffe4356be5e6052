"""Masking order by Fisher information: units go first whose removal raises the loss least, to second order.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", arXiv 2204.09656,
sections 4.1 and 4.2. At a converged model the loss rises by about (1 - m)^T F (1 - m) / 2 under a
mask m. F is the empirical Fisher information
of the gates: the mean over images of g g^T, where g are slopes of the image's loss along gates.

1. Search: by F's diagonal, units of least F_hh go; under a target in FLOPs or time, of least F_hh
per saving.
2. Rearrangement: by F's blocks, one per layer, a masked and a kept unit of the layer change places
as long as that
   lowers the sum: of two redundant units only one goes. Every layer keeps its number of units.

The path leads to the rearranged set of its last step; a longer path may begin with other units.

Where we differ: the best exchange is made first, until none helps (the paper goes through the
masked units once).

Shapes: A units of all sites, H units of one site, G sets of them that go together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path, Units
from mhprobe.masking.by_score import refuse_unscored
from mhprobe.masking.knapsack import knapsack_path
from mhprobe.masking.parts.units import bundled, savings


@dataclass(frozen=True)
class Fisher(Order):
    """Mask the units of least Fisher information first.

    rearranged: exchange single units within layers.

    multiple: as for ``Knapsack``.
    """

    rearranged: bool = True
    multiple: int = 1
    of_neurons: ClassVar[bool] = True

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """The one path of least Fisher information; ties go to the lower unit index.

        UserError if it is not finite.

        In a layout with neurons ``units`` only says which may go, and a step takes many.
        """
        free, mixed = units.masks.any(0), "neuron" in layout.kinds
        if not mixed and not (units.steps(steps) and units.candidates([])):
            return [units.path([])]
        sets = [mask.nonzero().flatten() for mask in units.masks]
        exchange = self.rearranged and (mixed or {*map(len, sets)} <= {1})
        blocks, diagonal_A = _information(evaluate, torch.zeros_like(free), exchange)
        refuse_unscored(diagonal_A, torch.ones_like(free), layout, "masking order fisher")
        saving_A = savings(units.limits, layout).clamp(min=1e-12)
        price_G = _prices(sets, diagonal_A, saving_A)
        if mixed:
            path = knapsack_path(diagonal_A, units, layout, steps, multiple=self.multiple)
        else:
            order = units.chosen(
                units.steps(steps), lambda order, left: min(left, key=price_G.__getitem__)
            )
            path = units.path(order)
        if not exchange:
            return [path]
        off = rearrange(layout, blocks, path.masks()[-1], free)
        if mixed:
            cheapest_first = (diagonal_A / saving_A)[off].argsort(stable=True)
            return [bundled(list(off.nonzero()[cheapest_first]), layout)]
        gone = [number for number, unit in enumerate(sets) if off[unit]]
        return [units.path(sorted(gone, key=price_G.__getitem__))]


def _prices(sets: Sequence[Tensor], diagonal_A: Tensor, saving_A: Tensor) -> list[float]:
    """(G,) Fisher information of each set, per saving."""
    return [float(diagonal_A[members].sum() / saving_A[members].sum()) for members in sets]


def _information(
    evaluate: Evaluate, nothing: Tensor, blocks: bool
) -> tuple[Sequence[Tensor], Tensor]:
    """Return F's blocks, (H, H) per site, and its diagonal, (A,), at a mask. blocks: False leaves them out."""
    if not blocks:
        return [], evaluate.slopes(nothing)[1]
    of_sites = evaluate.fisher(nothing)
    return of_sites, torch.cat([block.diagonal() for block in of_sites])


def rearrange(layout: HeadLayout, blocks: Sequence[Tensor], mask: Tensor, among: Tensor) -> Tensor:
    """(A,) bool mask with as many units per layer, after exchanges that lower (1 - m)^T F (1 - m) in each layer.

    blocks: of F, (H, H) per site. among: (A,) bool, the units that may be masked.
    """
    parts = zip(blocks, layout.split(mask), layout.split(among), strict=True)
    return torch.cat(
        [_exchanged(block_HH, mask_H.clone(), free_H) for block_HH, mask_H, free_H in parts]
    )


def _exchanged(block_HH: Tensor, mask_H: Tensor, free_H: Tensor) -> Tensor:
    """The mask after all exchanges of a masked unit for a kept one that lower the sum."""
    diagonal = block_HH.diagonal()
    with_masked_H = block_HH @ mask_H.double()
    while True:
        kept = (free_H & ~mask_H).nonzero().flatten()
        masked = mask_H.nonzero().flatten()
        if not len(kept) or not len(masked):
            break
        # taking unit j out and unit i in: F_ii + F_jj - 2 F_ij + 2 (row i - row j) of what is
        # masked
        into = diagonal[kept] + 2 * with_masked_H[kept]
        out = diagonal[masked] - 2 * with_masked_H[masked]
        change = into[:, None] + out - 2 * block_HH[kept[:, None], masked]
        best = int(change.argmin())
        if not change.flatten()[best] < -1e-12 * block_HH.abs().max():
            break
        i = kept[best // len(masked)]
        j = masked[best % len(masked)]
        mask_H[i], mask_H[j] = True, False
        with_masked_H = with_masked_H + block_HH[i] - block_HH[j]
    return mask_H
