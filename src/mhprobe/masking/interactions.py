"""Greedy masking order on a predicted loss with interactions of pairs: heads that replace each other do not both go.

Two heads that do the same thing are harmless alone and harmful together; a ranking of single heads
cannot see that. The predicted loss of a set is the sum of its units' own loss changes and of its
pairs' interactions, both measured by
masking on the selection split: the set function to second order (the pairwise term of Grabisch &
Roubens, 1999). Each step adds the unit that raises the prediction least.

This costs U + 1 evaluations for the units, and m (m - 1) / 2 for the pairs of the m least harmful
ones; other pairs are taken not to interact.
"""

from dataclasses import dataclass

import torch

from mhprobe.errors import Natural
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Order, Path, Units


@dataclass(frozen=True)
class Interactions(Order):
    """Greedy search on a loss that is predicted from single units and their pairs.

    among: m, the number of least harmful units whose pairs are measured; 24 take 276 evaluations.
    """

    among: Natural = 24

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """Return the path of least predicted loss; ties go to the lowest unit index."""
        length = units.steps(steps)
        order: list[int] = []
        if length and units.candidates(order):
            nothing = torch.zeros(1, layout.num_heads, dtype=torch.bool)
            loss = evaluate(torch.cat([nothing, units.masks])).mean_loss
            own_U = loss[1:] - loss[0]
            pair_UU = torch.zeros(len(units), len(units), dtype=torch.float64)
            few = own_U.argsort(stable=True)[: self.among]
            first, second = (few[side] for side in torch.triu_indices(len(few), len(few), 1))
            if len(first):
                together = evaluate(units.masks[first] | units.masks[second]).mean_loss - loss[0]
                pair_UU[first, second] = pair_UU[second, first] = (
                    together - own_U[first] - own_U[second]
                )

            def least(order: list[int], left: list[int]) -> int:
                return left[int((own_U[left] + pair_UU[left][:, order].sum(1)).argmin())]

            order = units.chosen(length, least)
        return [units.path(order)]
