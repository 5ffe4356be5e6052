"""A graft: heads of a trained network that are changed, grade by grade, until it is known what they are.

Written plants are easy: they are clean, and all or nothing. A graft begins as a head that training made, among others
that training made, and becomes more of what it shall be with every grade. The grade from which on a measure finds it
says how much of it the measure needs.
"""

from __future__ import annotations

import abc
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from mhprobe.headbench import grafts
from mhprobe.headbench.network import Network

GRADES = 5


class Graft(abc.ABC):
    """A subclass is a file of grafts/, which is its name.

    question: what a user would ask, e.g. "does it write little?". heads: how many make one graft, all of one layer.
    signs: what each measure, or a column of it, is expected to say: +1 if grafted heads have large values, -1 small.
        Written down beforehand, from what the measure's docstring says. Measures that are not named do not take part.
    amounts: of the five grades, the weakest first. unit: of the amounts, in words.
    low, high: ``shown`` is below ``low`` of heads that are no graft and above ``high`` of the strongest grade.
    """

    question: ClassVar[str]
    heads: ClassVar[int] = 1
    signs: ClassVar[Mapping[str, int]]
    amounts: ClassVar[tuple[float, ...]]
    unit: ClassVar[str]
    low: ClassVar[float]
    high: ClassVar[float]

    @abc.abstractmethod
    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        """A changed copy of ``network`` for each of ``amounts``, the weakest first."""

    @abc.abstractmethod
    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """Measure the graft in these heads by an intervention on ``network``; larger means more of it.

        before: the network as it was trained.
        """

    def verified(
        self, before: Network, strongest: Network, site: int, heads: Sequence[int], others: Sequence[int]
    ) -> bool:
        """Return True if the strongest grade has it, and neither the same heads before nor ``others`` of the layer."""
        untouched = max(self.shown(before, before, site, heads), self.shown(strongest, before, site, others))
        return self.shown(strongest, before, site, heads) > self.high and untouched < self.low


def known_grafts() -> dict[str, Graft]:
    """Every graft, by the name of its file."""
    found: dict[str, Graft] = {}
    for module in pkgutil.iter_modules(grafts.__path__, f"{grafts.__name__}."):
        for item in vars(importlib.import_module(module.name)).values():
            here = inspect.isclass(item) and item.__module__ == module.name
            if here and issubclass(item, Graft) and not inspect.isabstract(item):
                found[module.name.rpartition(".")[2]] = item()
    return found
