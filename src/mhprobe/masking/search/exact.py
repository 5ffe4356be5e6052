"""Exact search: the same unit as trying every candidate on every image, ties included, with fewer forward passes.

An image counts against a candidate when it is wrong (right, where the lowest accuracy wins). The
count so far is a lower bound of the final count. So the candidate with the lowest count goes on, a
piece of the images at a time, until one has seen all images and none has a lower count: best-first
search with an admissible bound (A*). The less often the winner is wrong, the more this saves.

Images of the highest loss under the mask before come first (lowest, where the lowest accuracy
wins). Images that are wrong already are wrong under nearly every candidate: half of them are the
first piece, for all candidates.

Shapes: U candidates, N images of the split.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mhprobe.errors import whole_number
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.search.base import ScoresSoFar, Search, SearchChoice, SearchStep

ABREAST = (
    1 / 8
)  # of a piece: candidates so close behind go on too, since masks that share blocks cost less together


@dataclass(frozen=True)
class Exact(Search):
    """Evaluate every candidate until it cannot win any more.

    parts: number of pieces of the images; with 1 every candidate is tried on every image. least:
    images of a piece.
    """

    parts: int = 24
    least: int = 32

    def __post_init__(self) -> None:
        whole_number("masking search exact: parts", self.parts, 1)
        whole_number("masking search exact: least", self.least, 1)

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        every = torch.arange(evaluate.images)
        if self.parts == 1 or len(step.units) == 1:
            scores = evaluate(step.masks)
            best = step.winner(scores)
            return SearchChoice(best, Scores(scores.right[best, None], scores.losses[best, None]))
        seen = ScoresSoFar(step, evaluate)
        first = torch.tensor([0])
        if step.before is None:
            seen.look(first, every)  # to find hard images
        pieces = self._pieces(step.before or seen.scores(first, every), step.prefers)
        place_U = seen.scored.all(1) * len(pieces)  # the next piece of each candidate
        while len(going := _ahead(seen, place_U, self._piece(len(every)) * ABREAST)):
            seen.look(going, pieces[int(place_U[going[0]])])
            place_U[going] += 1
        best = seen.winner(seen.complete(), every)
        return SearchChoice(best, seen.scores(torch.tensor([best]), every))

    def _pieces(self, before: Scores, prefers: int) -> list[Tensor]:
        order = before.losses[0].argsort(descending=prefers > 0, stable=True)
        counting = int((before.right[0] == (prefers < 0)).sum())
        first, rest = (
            order[: counting // 2],
            order[counting // 2 :],
        )  # half: some candidate may be much better
        return [piece for piece in (first, *rest.split(self._piece(len(order)))) if len(piece)]

    def _piece(self, images: int) -> int:
        return max(self.least, math.ceil(images / self.parts))


def _ahead(seen: ScoresSoFar, place_U: Tensor, near: float) -> Tensor:
    """The candidates that go on, all from the same place: those that may win, of the lowest count or near it."""
    against_U = (seen.scored & (seen.right == (seen.step.prefers < 0))).sum(1)
    alive = torch.nonzero(_may_win(seen, against_U) & ~seen.scored.all(1)).flatten()
    if not len(alive):
        return alive
    least = against_U[alive].min()
    leaders = alive[against_U[alive] == least]
    furthest = place_U[leaders].max()
    return alive[(place_U[alive] == furthest) & (against_U[alive] <= least + near)]


def _may_win(seen: ScoresSoFar, against_U: Tensor) -> Tensor:
    """(U,) bool, candidates that can still win against the best complete one."""
    complete = seen.complete()
    if not len(complete):
        return torch.ones(len(against_U), dtype=torch.bool)
    best = seen.winner(complete, torch.arange(seen.scored.shape[1]))
    ties = seen.step.loss_breaks_ties | (torch.arange(len(against_U)) <= best)
    return (against_U < against_U[best]) | ((against_U == against_U[best]) & ties)
