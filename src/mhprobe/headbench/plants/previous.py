"""A head whose tokens look at their left neighbour."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plants.itself import Itself


class Previous(Itself):
    question = "does it look at the previous patch?"
    signs: ClassVar = {"token_kinds.neighbours": 1, "attention_distance": -1, "position": 1, "entropy": -1}
    like = ("itself", "positional")  # of a fixed offset, too

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        return 0, -1
