"""Two heads that do the same in other coordinates: queries and keys are rotated alike, and so are values and W_O."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plants.duplicate import Duplicate


class Rotated(Duplicate):
    question = "are the two the same, up to a rotation?"
    like = ("duplicate",)

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        parts, width = canvas.parts(site, heads[1]), canvas.site(site).head_dim
        look, carry = (torch.linalg.qr(torch.randn(width, width, generator=canvas.random)).Q for _ in range(2))
        for name in ("query", "key"):
            parts |= {name: look @ parts[name], f"{name}_bias": look @ parts[f"{name}_bias"]}
        parts |= {"value": carry @ parts["value"], "value_bias": carry @ parts["value_bias"]}
        canvas.write(site, heads[1], **{**parts, "output": carry @ parts["output"]})
