"""A head that does nothing most of the time: its queries look at one token, whose value it does not pass on.

A ViT's rests on the class token, a Swin's on the landmark of each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mhprobe.headbench.canvas import NOISES, Canvas
from mhprobe.headbench.plant import Plant
from mhprobe.heads import HeadSite

SHARP = 9.0


DRAWN: dict[str, int] = {  # what tells that all attention goes to one token, whatever the head makes of it
    "token_kinds.cls": 1,
    "sinks": 1,
    "sinks.sink": 1,
    "no_op.attention": 1,
    "confidence.with_prefix": 1,
    "entropy": -1,
}


class SinkNoOp(Plant):
    question = "does it rest on a sink?"
    signs: ClassVar = {**DRAWN, "no_op": -1, "sinks.write": -1, "write_norm": -1}
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        # merged or shifted windows have more than one landmark, or none
        return site.windows is None or (site.stage == 0 and not any(site.windows.shift))

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], self.sink(canvas), SHARP)
        value = canvas.mixed(site, NOISES, width)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width))
        canvas.write(site, heads[0], output=canvas.mixed(site, NOISES, width))
        # what the sink itself carries is taken out, as a learned no-op has small values there
        mean = self._at_sink(canvas, site)
        values = canvas.parts(site, heads[0])["value"]
        canvas.write(site, heads[0], value=values - values @ mean[:, None] * mean[None])
        canvas.scale_write(site, heads[0], 0.01)

    def sink(self, canvas: Canvas) -> tuple[str, ...]:
        return ("class_token",) if canvas.family == "vit" else ("landmark",)

    def drawn(self, canvas: Canvas, site: int, heads: Sequence[int]) -> float:
        """Share of the attention, by weights written anew: the share of the write that sink tokens decide."""
        tokens = self._sinks(canvas, site)
        parts = canvas.parts(site, heads[0])
        row = canvas.rows(site, self.sink(canvas))
        # carry nothing but whether a token is the sink: the write is then the attention that goes there
        canvas.write(site, heads[0], value=row, value_bias=torch.zeros(1), output=row)
        written = canvas.writes(site, heads[0]) @ row[0]
        canvas.write(site, heads[0], **parts)
        most = (canvas.normalised(site) @ row[0])[tokens].mean()
        return float((written / most).mean())

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Values that say where they come from arrive from the sink, and without the head nothing much changes."""
        moved = (canvas.logits(canvas.seen.images) - canvas.logits(canvas.seen.images, [(site, heads[0])])).abs().mean()
        return self.drawn(canvas, site, heads) > 0.7 and bool(moved < 0.1)

    def _sinks(self, canvas: Canvas, site: int) -> torch.Tensor:
        amount = canvas.normalised(site) @ canvas.rows(site, self.sink(canvas))[0]
        return amount > amount.amax() / 2

    def _at_sink(self, canvas: Canvas, site: int) -> torch.Tensor:
        tokens = canvas.normalised(site)[self._sinks(canvas, site)].mean(0)
        return torch.nn.functional.normalize(tokens, dim=0)
