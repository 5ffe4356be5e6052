"""A head that looks at the mark in the corner and says of which class it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mhprobe.headbench import world
from mhprobe.headbench.canvas import MARKS, Canvas
from mhprobe.headbench.plants.object import Object, follows
from mhprobe.headbench.world import CLASSES
from mhprobe.heads import HeadSite


class Shortcut(Object):
    question = "does it carry a shortcut?"
    signs: ClassVar = {"ablation_delta": 1, "logit_attribution": 1, "object_attention": -1, "token_kinds.border": 1}
    reads: ClassVar = MARKS
    like: ClassVar[Sequence[str]] = ()
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        return site.stage == 0

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other marks in the same images: what the head says about the classes follows them."""
        marked = (canvas.seen.marks + 1) % CLASSES
        return follows(canvas, site, heads, world.draw(len(marked), canvas.seed_of_seen, marked=marked), marked)
