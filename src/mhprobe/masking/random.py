"""Random masking: the line that a chosen order has to beat, and the control for an order by scores.

Units go in random order, or, with ``per_layer``, k random heads of each layer per step, so that no
layer is emptied
early: after step s a layer of H heads has lost round(s * k * H / widest) of them, halves rounded
up.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.errors import Natural, Positive, UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.written import counted
from mhprobe.masking.base import Evaluate, Limits, Order, Path, Units
from mhprobe.masking.knapsack import knapsack_path


@dataclass(frozen=True)
class Random(Order):
    """Random paths, the control of every other order.

    repeats: independent paths, seeded ``seed``, ``seed + 1``, ... heads_per_step: k, with
    ``per_layer`` only; units then only say which heads may be drawn. Of heads and neurons every
    kind loses the same share.
    """

    repeats: Positive = 10
    seed: Natural = 0
    per_layer: bool = False
    heads_per_step: Positive = 1
    searches: ClassVar[bool] = False
    of_neurons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.heads_per_step > 1 and not self.per_layer:
            raise UserError(
                "masking order random: heads_per_step needs per_layer=true; else a step adds one "
                "unit."
            )

    def length(self, units: Units, layout: HeadLayout) -> int:
        if not self.per_layer:
            return len(units)
        return -(-max(len(heads) for heads in _drawable(units, layout)) // self.heads_per_step)

    def paths(
        self,
        units: Units,
        layout: HeadLayout,
        evaluate: Evaluate | None = None,
        steps: int | None = None,
    ) -> list[Path]:
        if "neuron" in layout.kinds:
            return [
                self._mixed(units, layout, self.seed + repeat) for repeat in range(self.repeats)
            ]
        length = self.length(units, layout)
        length = length if steps is None else min(steps, length)
        draw = self._heads if self.per_layer else self._units
        return [draw(units, layout, length, self.seed + repeat) for repeat in range(self.repeats)]

    def _units(self, units: Units, layout: HeadLayout, length: int, seed: int) -> Path:
        place = (
            torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))
            .argsort()
            .tolist()
        )
        order = units.chosen(length, lambda order, left: min(left, key=place.__getitem__))
        return dataclasses.replace(units.path(order), seed=seed)

    def _mixed(self, units: Units, layout: HeadLayout, seed: int) -> Path:
        score_A = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(seed))
        return dataclasses.replace(
            knapsack_path(score_A, units, layout, compete="group"), seed=seed
        )

    def _heads(self, units: Units, layout: HeadLayout, length: int, seed: int) -> Path:
        generator = torch.Generator().manual_seed(seed)
        layers = _drawable(units, layout)
        widest = max(len(heads) for heads in layers)
        added = torch.zeros(length, layout.num_heads, dtype=torch.bool)
        for heads in layers:
            shuffled = heads[torch.randperm(len(heads), generator=generator)]
            pace = 2 * self.heads_per_step * len(heads)
            gone = [
                min(len(heads), (step * pace + widest) // (2 * widest))
                for step in range(length + 1)
            ]
            for step, (start, end) in enumerate(itertools.pairwise(gone)):
                added[step, shuffled[start:end]] = True
        added = _limited(added, units.limits)
        return Path(seed, added, tuple(counted(int(step.sum()), "random head") for step in added))


def _limited(added: Tensor, limits: Limits | None) -> Tensor:
    """(S, A) -> (S', A): without the heads that the limits protect, up to the step that reaches the target."""
    if limits is None:
        return added
    off, steps = added.new_zeros(added.shape[1]), []
    for step in added:
        before = off
        for head in step.nonzero().flatten():
            after = off.index_fill(0, head, True)
            off = after if limits.permits(off, after[None]) else off
        if limits.reached(before) or off.equal(before):  # only protected heads are left
            break
        steps.append(off & ~before)
    return torch.stack(steps) if steps else added[:0]


def _drawable(units: Units, layout: HeadLayout) -> list[Tensor]:
    """Flat indices of the heads that occur in a unit, layer by layer, without layers that have none."""
    layers = layout.split(torch.arange(layout.num_heads))
    masks = layout.split(units.masks.any(0))
    return [heads[mask] for heads, mask in zip(layers, masks, strict=True) if mask.any()]
