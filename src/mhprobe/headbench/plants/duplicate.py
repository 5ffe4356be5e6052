"""Two heads with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plant import Plant, filler


class Duplicate(Plant):
    question = "are the two the same?"
    heads = 2
    like = ("rotated",)
    signs: ClassVar = {
        "svcca": 1,
        "cca": 1,
        "pwcca": 1,
        "cka": 1,
        "procrustes": 1,
        "weight_similarity": 1,
        "js_distance": -1,
    }

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        one, other = heads
        filler(canvas, site, one)
        canvas.write(site, other, **canvas.parts(site, one))

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """The same write, on images that it was not made on."""
        one, other = (canvas.writes(site, head) for head in heads)
        return bool((one - other).abs().max() < 1e-4 * one.abs().max()) and bool(one.abs().max() > 0)
