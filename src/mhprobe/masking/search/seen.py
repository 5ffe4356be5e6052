"""Scores of the candidates of one step: a table that fills up as masks are evaluated.

Shapes: U candidates, N images of the split.
"""

import torch
from torch import Tensor

from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.search.base import Step


class Seen:
    """right, losses: (U, N) as in Scores, where ``scored`` (U, N) is True."""

    def __init__(self, step: Step, evaluate: Evaluate) -> None:
        self.step, self.evaluate = step, evaluate
        shape = (len(step.units), evaluate.images)
        self.right = torch.zeros(shape, dtype=torch.bool)
        self.losses = torch.zeros(shape, dtype=torch.float64)
        self.scored = torch.zeros(shape, dtype=torch.bool)

    def look(self, candidates: Tensor, images: Tensor) -> None:
        """Evaluate some candidates on some images."""
        if not len(candidates) or not len(images):
            return
        scores = self.evaluate(self.step.masks[candidates], images)
        at = candidates[:, None], images
        self.right[at], self.losses[at], self.scored[at] = scores.right, scores.losses, True

    def complete(self) -> Tensor:
        """The candidates that are known on all images, by ascending index."""
        return torch.nonzero(self.scored.all(1)).flatten()

    def winner(self, candidates: Tensor, images: Tensor) -> int:
        """The best of some candidates on some images, all of which have been looked at."""
        return int(candidates[self.step.winner(self.scores(candidates, images))])

    def scores(self, candidates: Tensor, images: Tensor) -> Scores:
        """Scores of some candidates on some images."""
        at = candidates[:, None], images
        return Scores(self.right[at], self.losses[at])
