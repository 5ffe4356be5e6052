"""The interface of a search: find the candidate that leaves the best score on the split.

Shapes: A heads, U candidates, N images of the split.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from mhprobe.masking.base import Evaluate, Scores


@dataclass(frozen=True)
class SearchStep:
    """One step of a greedy search.

    off: (A,) bool, the heads masked so far. units: (U, A) bool, the heads that each candidate would
    add.
    prefers: +1 if the highest accuracy wins, -1 if the lowest. loss_breaks_ties: ties go to the
        better loss (in the same sense), then to the lowest index. number: of the step, for seeds.
        before: scores of ``off``, if known.
    """

    off: Tensor
    units: Tensor
    prefers: int
    loss_breaks_ties: bool = False
    number: int = 0
    before: Scores | None = None

    @property
    def masks(self) -> Tensor:
        """(U, A)."""
        return self.off | self.units

    def winner(self, scores: Scores) -> int:
        """Return the index of the best scored mask; the first of equals."""
        losses = scores.loss.tolist() if self.loss_breaks_ties else [0.0] * len(scores.right)
        merit = [
            (self.prefers * c, -self.prefers * loss)
            for c, loss in zip(scores.correct.tolist(), losses, strict=True)
        ]
        return merit.index(max(merit))


class SearchChoice(NamedTuple):
    """The chosen candidate, and the scores of its mask on all images, if known."""

    candidate: int
    scores: Scores | None = None


def search_name(search: "Search") -> str:
    """The search's name, e.g. "exact"; with the search that it hands on to, e.g. "screened, racing"."""
    parts = [getattr(search, name) for name in search.__dataclass_fields__]
    inner = [search_name(part) for part in parts if hasattr(part, "choose")]
    return ", ".join([type(search).__name__.lower(), *inner])


class Search(Protocol):
    """A frozen dataclass: its fields are its options.

    It decides on numbers that are the same on every rank.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        """The best candidate, or one as good as the search promises."""
        ...


class ScoresSoFar:
    """Scores of candidates so far. right, losses: (U, N) as in Scores, where ``scored`` (U, N) is True."""

    def __init__(self, step: SearchStep, evaluate: Evaluate) -> None:
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
        """The best of some candidates on some images, all of them evaluated."""
        return int(candidates[self.step.winner(self.scores(candidates, images))])

    def scores(self, candidates: Tensor, images: Tensor) -> Scores:
        """Scores of some candidates on some images."""
        at = candidates[:, None], images
        return Scores(self.right[at], self.losses[at])
