"""Automatic search: exact for units of several heads, which are few; screening and racing for single heads."""

from dataclasses import dataclass, field

from torch import Tensor

from mhprobe.masking.base import Evaluate
from mhprobe.masking.search.base import Search, SearchChoice, SearchStep
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened


@dataclass(frozen=True)
class Auto(Search):
    """Choose the search by the size of the units.

    several: for units of several heads. single: for those of one.
    """

    several: Search = field(default_factory=Exact)
    single: Search = field(default_factory=lambda: Screened(best=20, then=Racing()))

    def of(self, masks: Tensor) -> Search:
        """The search for these units, (U, A) bool."""
        return self.single if bool((masks.sum(1) == 1).all()) else self.several

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        return self.of(step.units).choose(step, evaluate)
