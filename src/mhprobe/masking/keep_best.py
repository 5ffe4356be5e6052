"""Greedy keep-best: mask the unit whose loss hurts least. How many heads can go before it matters?

Byun & Kim, "What does the multi-head do?": with units=index this is their head_max, with
units=layer their layer_max.
"""

from typing import ClassVar

from mhprobe.masking.parts.greedy import GreedySearch


class KeepBest(GreedySearch):
    """The unit that leaves the highest accuracy goes first."""

    prefers: ClassVar[int] = 1
