"""Greedy in turns: heads by replay, neurons by Fisher information, whichever saves its share for less.

The saving that a budget asks for is divided into equal parts. For each part there are two candidate sets. One has the
heads whose masking raises the loss least, chosen one by one (Michel et al. 2019, arXiv 1905.10650). The other has the
neurons of least Fisher information per cost (Kwon et al. 2022, arXiv 2204.09656). The set goes that raises the loss
less per saving.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError, whole_number
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Limits, Path, Units
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.knapsack import going_together, refuse_multiple
from mhprobe.masking.parts.units import saving_of_each, savings
from mhprobe.masking.search.base import Step


@dataclass(frozen=True)
class Turns(KeepBest):
    """Heads and neurons in turns; of heads alone the greedy path. turns: number of equal parts of the way.

    Of shares of each kind one after the other. multiple: as for ``Knapsack``.
    """

    turns: int = 10
    multiple: int = 1
    of_neurons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number("masking order turns: turns", self.turns, 1)

    def paths(self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None) -> list[Path]:
        """The one path, of a step per part. UserError for heads and neurons without a target."""
        if "neuron" not in layout.kinds:
            return super().paths(units, layout, evaluate, steps)
        if (limits := units.limits) is None or not limits.targets:
            raise UserError("masking order turns: of heads and neurons it needs a target, as {flops: 0.5}.")
        refuse_multiple(self.multiple, layout)
        free, number = units.masks.any(0), torch.arange(layout.num_heads)
        heads = free & (number < layout.of("head").num_heads)
        off, added = torch.zeros_like(free), list[Tensor]()
        costly = list(zip(limits.targets, free & (saving_of_each(limits) > 0), strict=True))
        for turn, (target, those) in itertools.product(range(1, self.turns + 1), costly):
            whole = target.left(torch.zeros_like(off))
            goal = dataclasses.replace(target, value=whole - (whole - target.value) * turn / self.turns)
            near = dataclasses.replace(limits, targets=(goal,))
            while not near.reached(off):
                on_top = off, near, evaluate
                tried = self._heads(those & heads, *on_top), self._neurons(those & ~heads, *on_top)
                if not (ways := [after for after in tried if not after.equal(off)]):
                    break  # what is left is protected
                now, *losses = evaluate(torch.stack([off, *ways])).mean_loss.tolist()
                saved = [target.left(off) - target.left(after) for after in ways]
                rises = [(loss - now) / max(part, 1e-12) for loss, part in zip(losses, saved, strict=True)]
                after = ways[rises.index(min(rises))]
                added.append(after & ~off)
                off = after
        names = tuple(f"{int((step & heads).sum())} heads, {int((step & ~heads).sum())} neurons" for step in added)
        return [Path(None, torch.stack(added) if added else torch.zeros(0, layout.num_heads, dtype=torch.bool), names)]

    def _heads(self, heads: Tensor, off: Tensor, limits: Limits, evaluate: Evaluate) -> Tensor:
        """(A,) ``off`` with more heads, the least missed first, until the limits' target is reached."""
        while not limits.reached(off):
            masks = torch.eye(len(off), dtype=torch.bool)[heads & ~off]
            masks = masks[limits.permits(off, off | masks)]
            if not len(masks):
                break
            step = Step(off, masks, self.prefers, self.tie_break == "loss", int(off.sum()))
            units = Units(tuple(map(str, range(len(masks)))), masks)
            off = off | masks[self._search(units).choose(step, evaluate).candidate]
        return off

    def _neurons(self, neurons: Tensor, off: Tensor, limits: Limits, evaluate: Evaluate) -> Tensor:
        """(A,) ``off`` with more neurons, of least Fisher information per cost, until the target is reached."""
        if not (left := neurons & ~off).any():
            return off
        price_A = evaluate.slopes(off)[1] / savings(limits, limits.layout).clamp(min=1e-12)
        sets = going_together(left, limits.layout, price_A, self.multiple)
        for members in sorted(sets, key=lambda members: float(price_A[members].mean())):
            if limits.reached(off):
                break
            after = off.index_fill(0, members, True)
            off = after if limits.permits(off, after[None]) else off
        return off
