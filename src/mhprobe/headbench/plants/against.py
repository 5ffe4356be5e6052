"""A head that looks at the object and writes evidence against its class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plants.object import Object

NATS = -0.7


class Against(Object):
    question = "does it hurt?"
    signs: ClassVar = {"ablation_delta": -1, "logit_attribution": -1, "logit_attribution.against": 1}
    like: ClassVar[Sequence[str]] = ()

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        canvas.write(site, heads[0], output=-canvas.parts(site, heads[0])["output"])
        canvas.scale_evidence(site, heads[0], NATS)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Without its columns of W_O the loss falls."""
        return canvas.loss([(site, heads[0])]) < canvas.loss() - 0.02
