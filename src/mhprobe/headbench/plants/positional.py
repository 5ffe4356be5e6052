"""A head whose tokens look at a fixed place relative to them, some way off."""

from __future__ import annotations

from typing import ClassVar

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plants.itself import Itself


class Positional(Itself):
    question = "does it look at a fixed offset?"
    signs: ClassVar = {"position": 1, "entropy": -1, "confidence": 1}
    like = ("itself", "previous")

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        return (2, 1) if canvas.family == "vit" else (1, 2)
