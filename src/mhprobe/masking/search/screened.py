"""Screened: only the candidates that look good to second order are evaluated.

The loss after masking a unit is predicted from slopes s_h of an image's loss along gates, by one
backward pass:

    change = sum over the unit's heads of  -mean(s_h) + 1/2 mean(s_h^2)

The second term, half the diagonal of the empirical Fisher information, stands for the curvature
(Kwon et al., 2022, arXiv 2204.09656, use it alone; Molchanov et al., 2017, arXiv 1611.06440, the
first alone). The ``best`` lowest go on to another search. There is no guarantee: a unit that is
badly predicted is not tried.

Shapes: A heads, U candidates.
"""

import dataclasses
from dataclasses import dataclass, field

import torch

from mhprobe.errors import whole_number
from mhprobe.masking.base import Evaluate
from mhprobe.masking.search.base import Search, SearchChoice, SearchStep
from mhprobe.masking.search.exact import Exact

SLOPES = 2  # evaluations that a recorded backward pass costs


@dataclass(frozen=True)
class Screened(Search):
    """Rank candidates by predicted loss; ``then`` chooses among the ``best`` lowest, or all of at most ``best + 2``."""

    best: int = 20
    then: Search = field(default_factory=Exact)

    def __post_init__(self) -> None:
        whole_number("masking search screened: best", self.best, 1)

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        """Let ``then`` choose among the ``best`` candidates of lowest predicted loss (highest, for hurt_most)."""
        if len(step.units) <= self.best + SLOPES:  # trying all costs no more than predicting
            return self.then.choose(step, evaluate)
        slope_A, square_A = evaluate.slopes(step.off)
        change_A = torch.where(step.off, 0.0, square_A / 2 - slope_A)
        change_U = step.units.double() @ change_A.double()  # in nats of the mean loss
        promising = (
            change_U.argsort(descending=step.prefers < 0, stable=True)[: self.best].sort().values
        )
        choice = self.then.choose(dataclasses.replace(step, units=step.units[promising]), evaluate)
        return choice._replace(candidate=int(promising[choice.candidate]))
