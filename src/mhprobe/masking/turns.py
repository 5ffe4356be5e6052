"""Greedy in turns: heads by replay, neurons by Fisher information, whichever saves its share for less.

The saving that a budget asks for is divided into equal parts. For each part there are two candidate sets. One has the
neurons of least Fisher information per cost (Kwon et al. 2022, arXiv 2204.09656). The other has the heads whose masking
raises the loss least, chosen one by one (Michel et al. 2019, arXiv 1905.10650). The set goes that raises the loss less
per saving. No more heads are tried once those chosen raise the loss more per saving than the neurons do.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.errors import UserError, whole_number
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Limits, Path, Target, Units
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.knapsack import going_together, refuse_multiple
from mhprobe.masking.parts.units import bundled, saving_of_each, savings
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
        """The one path, of a step per part, 32 at most. UserError for heads and neurons without a target."""
        if "neuron" not in layout.kinds:
            return super().paths(units, layout, evaluate, steps)
        if (limits := units.limits) is None or not limits.targets:
            raise UserError("masking order turns: of heads and neurons it needs a target, as {flops: 0.5}.")
        refuse_multiple(self.multiple, layout)
        free = units.masks.any(0)
        heads = free & (torch.arange(len(free)) < layout.of("head").num_heads)
        off, sets = torch.zeros_like(free), list[Tensor]()
        costly = list(zip(limits.targets, free & (saving_of_each(limits) > 0), strict=True))
        parts = list(itertools.product(range(1, self.turns + 1), costly))
        search = int(heads.sum()) * evaluate.images  # of one head among all; a part takes none, one or more
        with evaluate.watched(len(parts) * search) as say:
            for number, (turn, (target, those)) in enumerate(parts):
                left = f"{100 * target.left(off):.0f} % of {target.unit} left"
                say(f"part {number + 1} of {len(parts)}, {left}", number * search)
                whole = target.left(torch.zeros_like(off))
                goal = dataclasses.replace(target, value=whole - (whole - target.value) * turn / self.turns)
                near = dataclasses.replace(limits, targets=(goal,))
                while not near.reached(off):
                    neurons = self._neurons(those & ~heads, off, near, evaluate)
                    after = self._heads(those & heads, off, near, evaluate, rise(off, neurons, target, evaluate))
                    after = neurons if after.equal(off) else after
                    if after.equal(off):
                        break  # what is left is protected
                    sets.append((after & ~off).nonzero().flatten())
                    off = after
        return [bundled(sets, layout)]

    def _heads(self, heads: Tensor, off: Tensor, limits: Limits, evaluate: Evaluate, price: float) -> Tensor:
        """(A,) ``off`` and more heads up to the target, least missed first; ``off`` once they rise above ``price``."""
        after = off
        while not limits.reached(after):
            masks = torch.eye(len(off), dtype=torch.bool)[heads & ~after]
            masks = masks[limits.permits(after, after | masks)]
            if not len(masks):
                break
            step = Step(after, masks, self.prefers, self.tie_break == "loss", int(after.sum()))
            after = after | masks[self.search.choose(step, evaluate).candidate]
            if rise(off, after, limits.targets[0], evaluate) > price:
                return off
        return after

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


def rise(off: Tensor, after: Tensor, target: Target, evaluate: Evaluate) -> float:
    """Loss that the (A,) mask ``after`` adds to that of ``off``, per share of cost saved; inf if they are equal."""
    if after.equal(off):
        return math.inf
    now, then = evaluate(torch.stack([off, after])).mean_loss.tolist()
    return (then - now) / max(target.left(off) - target.left(after), 1e-12)
