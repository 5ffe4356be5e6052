"""A head whose tokens look at themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plant import Plant, carry, from_offset

SHARP = 9.0


class Itself(Plant):
    question = "does it look at itself?"
    signs: ClassVar = {"token_kinds.self": 1, "attention_distance": -1, "attention_range": -1, "entropy": -1}

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        """(down, across), in tokens."""
        return 0, 0

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_at_offset(site, heads[0], *self.offset(canvas, site), SHARP)
        carry(canvas, site, heads[0])

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Noise on that token, and on no other, moves the write."""
        return from_offset(canvas, site, heads[0], *self.offset(canvas, site)) > 0.7
