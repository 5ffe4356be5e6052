"""Masking order under a budget: units with the least importance per cost go first, heads and neurons in one list.

A budget is a knapsack (Shen et al. 2022, "Structural Pruning via Latency-Saliency Knapsack", arXiv
2110.10811): keep the set of the largest total score that costs no more than the target. All units
of a site cost the same, so the greedy order by score per cost solves it up to the last unit. Fang
et al. 2024 ("Isomorphic Pruning", ECCV, arXiv 2407.04616)
compare scores of like structures alone: units go by their rank in their group, and every group
loses the same share.

Scores are taken once, with all units on, and summed over a set. Units of negative score go first,
the lowest per cost before the others. They are not put back, even if the target is met without
them.

Shapes: A units of all sites, G sets that go together.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mhprobe.errors import Positive, UserError, whole_number
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Path, Units
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.parts.units import bundled, savings, shares_below, until


@dataclass(frozen=True)
class Knapsack(ByScore):
    """The lowest score per cost of a target goes first; without a target every unit costs the same.

    measure, table, column, first: as for ByScore.
    compete: "all" by score per cost; or by rank in a "group" (heads of one width and stage, neurons
        of one stage), or in a "layer".
    normalize: "layer" divides every score by the mean size of its layer's. multiple: so many
        neurons of a layer go together: widths stay multiples of it.
    """

    compete: Literal["all", "group", "layer"] = "all"
    normalize: Literal["none", "layer"] = "none"
    multiple: Positive = 1
    of_neurons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rescore_every is not None:
            raise UserError(f"{self._asker}: scores once, expected rescore_every=null.")

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """The one path to the target.

        Equal scores: the lower index first. UserError names a unit without a score.

        In a layout with neurons ``units`` only says which may go, and a step takes many.
        """
        mixed = "neuron" in layout.kinds
        if not mixed and self.compete != "all" and bool((units.masks.sum(1) > 1).any()):
            raise UserError(
                f"{self._asker}: compete={self.compete} ranks single heads, not sets of them; "
                "choose all."
            )
        drawable = units.masks.any(0)
        score_A = self._of_heads(
            drawable, layout, evaluate, torch.zeros_like(drawable)
        ).nan_to_num()
        path = knapsack_path(
            score_A, units, layout, steps, self.compete, self.normalize, self.multiple
        )
        return [dataclasses.replace(path, scores=score_A)]


def knapsack_path(
    score_A: Tensor,
    units: Units,
    layout: HeadLayout,
    steps: int | None = None,
    compete: str = "all",
    normalize: str = "none",
    multiple: int = 1,
) -> Path:
    """The path by scores (A,), lowest first, to the target of ``units``.

    Equal scores: the lower index first.

    compete, normalize, multiple: as for ``Knapsack``; "each" compares mean scores, whatever a unit
    costs. UserError for neurons that are no multiple.
    """
    mixed = "neuron" in layout.kinds
    if normalize == "layer":
        score_A = torch.cat(
            [part / part.abs().mean().clamp(min=1e-300) for part in layout.split(score_A)]
        )
    refuse_multiple(multiple, layout)
    together = [mask.nonzero().flatten() for mask in units.masks]
    sets = going_together(units.masks.any(0), layout, score_A, multiple) if mixed else together
    price_G = [float(score_A[members].sum()) for members in sets]
    if compete in ("all", "each"):
        cost_A = savings(units.limits if compete == "all" else None, layout)
        cost_G = [max(float(cost_A[members].sum()), 1e-12) for members in sets]
        price_G = [score / cost for score, cost in zip(price_G, cost_G, strict=True)]
    else:
        price_G = shares_below(sets, price_G, layout, compete)
    order = until(sets, price_G, layout, units.limits, steps)
    return bundled([sets[number] for number in order], layout) if mixed else units.path(order)


def refuse_multiple(multiple: int, layout: HeadLayout) -> None:
    """Raise UserError unless layers have a multiple of so many neurons, of which multiples can be left."""
    whole_number("multiple", multiple, 1)
    if multiple > 1 and "neuron" not in layout.kinds:
        raise UserError(
            f"multiple: it counts neurons, got {multiple} for heads alone; take 1, or neurons, too."
        )
    for site in layout.of("neuron").sites:
        if site.num_heads % multiple:
            raise UserError(
                f"multiple: {site.name} has {site.num_heads} neurons, which is no multiple of "
                f"{multiple}; choose a "
                f"divisor of it, or multiple=1."
            )


def going_together(
    drawable: Tensor, layout: HeadLayout, score_A: Tensor, multiple: int = 1
) -> list[Tensor]:
    """Flat indices that go together: one head, or ``multiple`` neurons of a layer that follow each other by score."""
    sets: list[Tensor] = []
    for number, site in enumerate(layout.sites):
        members = drawable[layout.span(number)].nonzero().flatten() + layout.offsets[number]
        members = members[score_A[members].argsort(stable=True)]
        sets += members.split(multiple if site.kind == "neuron" else 1) if len(members) else ()
    return sets
