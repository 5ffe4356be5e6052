"""A head that looks and computes, and writes nothing: its columns of W_O are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mhprobe.headbench.canvas import Canvas
from mhprobe.headbench.plant import Plant, filler


class Dead(Plant):
    question = "is it dead?"
    signs: ClassVar = {
        "write_norm": -1,
        "ablation_delta": -1,
        "gate_importance": -1,
        "fisher": -1,
        "lrp_relevance": -1,
        "logit_attribution.size": -1,
    }

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        filler(canvas, site, heads[0])
        canvas.write(site, heads[0], output=torch.zeros_like(canvas.parts(site, heads[0])["output"]))

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other values, and no logit moves."""
        before, parts = canvas.logits(canvas.seen.images), canvas.parts(site, heads[0])
        canvas.write(site, heads[0], value=parts["value"].flip(0) * 3, value_bias=parts["value_bias"] + 1)
        after = canvas.logits(canvas.seen.images)
        canvas.write(site, heads[0], **parts)
        return bool((before - after).abs().max() < 1e-6)
