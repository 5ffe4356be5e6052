"""Greedy in turns: heads by trying them, neurons by Fisher information, whichever saves its share for less.

The saving that a budget asks for is divided into equal parts. For each part there are two candidate
sets. One has the neurons of least Fisher information per cost (Kwon et al. 2022, arXiv 2204.09656).
The other has the heads whose masking raises the loss least, chosen one by one (Michel et al. 2019,
arXiv 1905.10650). The set goes that raises the loss less per saving. No more heads are tried once
those chosen raise the loss more per saving than the neurons do.

A head is tried again only when it was the least missed of all (Minoux 1978, "Accelerated greedy
algorithms"). That is the plain greedy choice wherever a head is missed the more, the more units are
off.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mhprobe.errors import Positive, UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Limits, Path, Scores, Units
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.knapsack import going_together, refuse_multiple
from mhprobe.masking.parts.units import bundled, saving_of_each, savings

Trial = Callable[[Tensor], Scores]
"""(M, A) masks -> their scores on the images on which losses are computed."""


@dataclass(frozen=True)
class Turns(KeepBest):
    """Heads and neurons in turns.

    turns: number of equal parts of the way. multiple: as for ``Knapsack``.

    shown: number of images on which losses are computed; None for all. Slopes are computed on all.

    With a share per kind, the kinds are pruned one after the other. With heads only this is the
    greedy order; ``search`` and ``tie_break`` apply to it.
    """

    turns: Positive = 10
    multiple: Positive = 1
    shown: Positive | None = None
    of_neurons: ClassVar[bool] = True

    def paths(
        self, units: Units, layout: HeadLayout, evaluate: Evaluate, steps: int | None = None
    ) -> list[Path]:
        """The one path, of a step per part, 32 at most.

        UserError for heads and neurons without a target.
        """
        if "neuron" not in layout.kinds:
            return super().paths(units, layout, evaluate, steps)
        if (limits := units.limits) is None or not limits.targets:
            raise UserError(
                "masking order turns: of heads and neurons it needs a target, as {flops: 0.5}."
            )
        refuse_multiple(self.multiple, layout)
        free = units.masks.any(0)
        heads = free & (torch.arange(len(free)) < layout.of("head").num_heads)
        off = torch.zeros_like(free)
        sets = list[Tensor]()
        rise_A = torch.full((len(free),), -math.inf).double()
        costly = list(zip(limits.targets, free & (saving_of_each(limits) > 0), strict=True))
        parts = list(itertools.product(range(1, self.turns + 1), costly))
        subset = None if self.shown is None else evaluate.spread(self.shown)
        trial: Trial = functools.partial(evaluate, images=subset)
        tries, before = 4 * int(heads.sum()) + 2 * len(parts), evaluate.spent  # seen: 3 to 5 a head
        expected = tries * (
            evaluate.images if subset is None else len(subset)
        ) + 2 * evaluate.images * len(parts)
        with evaluate.watched(expected) as say:
            now = float(trial(off[None]).mean_loss)
            for number, (turn, (target, those)) in enumerate(parts, 1):
                say(f"part {number} of {len(parts)}", evaluate.spent - before)
                dense = target.left(torch.zeros_like(off))
                goal = dataclasses.replace(
                    target, value=dense - (dense - target.value) * turn / self.turns
                )
                near = dataclasses.replace(limits, targets=(goal,))
                while not near.reached(off):
                    neurons = self._neurons(those & ~heads, off, near, evaluate)
                    then = float(trial(neurons[None]).mean_loss)
                    saved = target.left(off) - target.left(neurons)
                    price = (then - now) / saved if saved > 0 else math.inf
                    after, loss = self._heads(those & heads, off, near, trial, now, price, rise_A)
                    after, loss = (neurons, then) if after.equal(off) else (after, loss)
                    if after.equal(off):
                        break  # what is left is protected
                    sets.append((after & ~off).nonzero().flatten())
                    off, now = after, loss
        return [bundled(sets, layout)]

    def _heads(
        self,
        heads: Tensor,
        off: Tensor,
        limits: Limits,
        trial: Trial,
        now: float,
        price: float,
        rise_A: Tensor,
    ) -> tuple[Tensor, float]:
        """(A,) ``off`` and more heads up to the target, and its loss; ``off`` once they cost more than ``price``.

        now: loss of ``off``. rise_A: of the loss by each head when last tried on units that went,
        -inf before; updated.
        """
        (target,), after, loss, latest_A = limits.targets, off, now, rise_A
        while not limits.reached(after):
            left = (heads & ~after).nonzero().flatten()
            left = left[limits.permits(after, after | one_hot(left, len(off)).bool())]
            if not len(left):
                break
            head = least_missed(left, after, loss, latest_A, trial)
            after = after.index_fill(0, head, True)
            loss = loss + float(latest_A[head])
            if loss - now > price * (target.left(off) - target.left(after)):
                return off, now
            latest_A = latest_A.clone()
        rise_A.copy_(latest_A)
        return after, loss

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


def least_missed(heads: Tensor, off: Tensor, loss: float, rise_A: Tensor, trial: Trial) -> Tensor:
    """(1,) of ``heads``, (U,), the one that raises the loss least on top of ``off``. rise_A: as for ``_heads``."""
    tried = torch.zeros_like(off)
    due = heads[rise_A[heads].isneginf()]
    while True:
        if len(due):
            rise_A[due] = trial(off | one_hot(due, len(off)).bool()).mean_loss.double() - loss
            tried[due] = True
        due = heads[rise_A[heads].argmin()[None]]
        if tried[due]:
            return due
