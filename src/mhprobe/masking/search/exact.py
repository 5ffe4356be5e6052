"""Exact: the unit that trying every candidate on every image would choose, ties included, for less.

A candidate whose fate is sealed is dropped. Images count against a candidate when they are wrong (where the highest
accuracy wins; right, where the lowest does). Once the best candidate so far is known on all images, with E of them
against it, another that has already collected more than E cannot win, nor can one with E that would lose the tie.

So what matters is to meet early the images that count. The ones on which the current mask is unsure come first, because
candidates differ there and the likely winner shows; that one is completed. The others follow in the order of the
current mask's loss, so that the images that will count for nobody come last, and most candidates never see them.

What that saves depends on E: little for a model that is often wrong, much for a good one.

Shapes: U candidates, N images of the split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.search.base import Choice, Step
from mhprobe.masking.search.seen import Seen


@dataclass(frozen=True)
class Exact:
    """parts: in how many walks the images are taken; after each of them candidates are dropped. 1 drops none."""

    parts: int = 12

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise UserError(f"masking search exact: parts is at least 1, got {self.parts}.")

    def choose(self, step: Step, evaluate: Evaluate) -> Choice:
        """The exhaustive choice."""
        every = torch.arange(evaluate.images)
        if self.parts == 1 or len(step.units) == 1:
            scores = evaluate(step.masks)
            best = step.winner(scores)
            return Choice(best, Scores(scores.right[best, None], scores.losses[best, None]))
        before = step.before or evaluate(step.off[None])
        seen, alive = Seen(step, evaluate), torch.arange(len(step.units))
        leader: int | None = None
        for images in self._walks(before.losses[0], step.prefers):
            seen.look(alive, images)
            leader = self._complete_the_leader(seen, alive, leader)
            alive = alive[_may_win(seen, leader)[alive]]
        best = seen.winner(seen.complete(), every)
        return Choice(best, seen.scores(torch.tensor([best]), every))

    def _walks(self, loss_N: Tensor, prefers: int) -> list[Tensor]:
        """The images, in the pieces in which they are looked at."""
        unsure = ((-loss_N).exp() - 0.5).abs().argsort(stable=True)  # by the distance of the label's probability
        first, rest = unsure.tensor_split([len(unsure) * 2 // self.parts])
        rest = rest[loss_N[rest].argsort(descending=prefers > 0, stable=True)]
        return [part for part in (first, *rest.tensor_split(self.parts - 1)) if len(part)]

    def _complete_the_leader(self, seen: Seen, alive: Tensor, best: int | None) -> int:
        """Look at the rest of the images of the candidate that is ahead, and say which complete one is the best."""
        every = torch.arange(seen.scored.shape[1])
        unfinished = alive[~seen.scored[alive].all(1)]
        if len(unfinished):
            so_far = every[seen.scored[unfinished[0]]]
            leader = seen.winner(unfinished, so_far)
            if best is None or seen.winner(torch.tensor([best, leader]).sort().values, so_far) != best:
                seen.look(torch.tensor([leader]), every[~seen.scored[leader]])
        return seen.winner(seen.complete(), every)


def _may_win(seen: Seen, best: int) -> Tensor:
    """(U,) bool, who can still win against the best complete candidate."""
    against_U = (seen.scored & (seen.right == (seen.step.prefers < 0))).sum(1)
    wins_a_tie = torch.arange(len(against_U)) <= best
    if seen.step.loss_breaks_ties:
        wins_a_tie[:] = True
    return (against_U < against_U[best]) | ((against_U == against_U[best]) & wins_a_tie)
