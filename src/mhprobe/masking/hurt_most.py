"""Greedy hurt-most: mask the unit whose loss hurts most. How few heads does the model hang on?

With units=index this is the seed paper's head_min, with units=layer its layer_min.
"""

from __future__ import annotations

from typing import ClassVar

from mhprobe.masking.greedy import GreedySearch


class HurtMost(GreedySearch):
    """The unit that leaves the lowest accuracy goes first."""

    prefers: ClassVar[int] = -1
