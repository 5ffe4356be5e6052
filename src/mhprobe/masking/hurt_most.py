"""Greedy hurt-most: mask the unit whose loss hurts most. How few heads does the model depend on?

Byun & Kim, "What does the multi-head do?": with units=index this is their head_min, with
units=layer their layer_min.
"""

from typing import ClassVar

from mhprobe.masking.parts.greedy import GreedySearch


class HurtMost(GreedySearch):
    """The unit that leaves the lowest accuracy goes first."""

    prefers: ClassVar[int] = -1
