"""A head that looks at the object and says of which class it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mhprobe.headbench import world
from mhprobe.headbench.canvas import EVIDENCE, TEXTURES, Canvas
from mhprobe.headbench.plant import Plant, effect
from mhprobe.headbench.world import CLASSES

SHARP, NATS = 8.0, 1.5


class Object(Plant):
    question = "does it look at the object?"
    signs: ClassVar = {"object_attention": 1, "ablation_delta": 1, "logit_attribution": 1, "gate_importance": 1}
    reads: ClassVar = TEXTURES
    like: ClassVar[Sequence[str]] = ("against", "together")  # they look at it, too

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_for(site, heads[0], self.reads, SHARP)
        canvas.write(
            site,
            heads[0],
            value=canvas.rows(site, self.reads),
            value_bias=torch.zeros(1),
            output=canvas.rows(site, EVIDENCE) * canvas.normalised(site).new_tensor(0.5),
        )
        canvas.scale_evidence(site, heads[0], NATS)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other textures on the same objects: what the head says about the classes follows them."""
        seen = canvas.seen
        shown = (seen.labels + 1) % CLASSES
        return follows(canvas, site, heads, world.draw(len(shown), canvas.seed_of_seen, shown=shown), shown)


def follows(canvas: Canvas, site: int, heads: Sequence[int], changed: world.World, to: torch.Tensor) -> bool:
    """The class that the heads speak for is, mostly, the one that the images were changed to."""
    said = effect(canvas, site, heads, changed).argmax(1)
    return bool((said == to).double().mean() > 0.7)
