"""A head that broadcasts one token: all queries look at that token, and its content is written to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mhprobe.headbench.canvas import NOISES, SCRATCH, Canvas
from mhprobe.headbench.plants.sink_no_op import DRAWN, SHARP, SinkNoOp


class SinkBroadcast(SinkNoOp):
    question = "does it hand out what a sink knows?"
    signs: ClassVar = {**DRAWN, "write_norm": 1, "sinks.common": 1, "sinks.role": 1}

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], self.sink(canvas), SHARP)
        value = torch.cat([canvas.rows(site, self.sink(canvas)), canvas.mixed(site, NOISES, width - 1)])
        output = torch.cat([canvas.mixed(site, SCRATCH, 1), 0.3 * canvas.mixed(site, NOISES, width - 1)])
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width), output=output)
        canvas.scale_write(site, heads[0], 0.15)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Values that say where they come from arrive from the sink, and all tokens are given nearly the same."""
        writes = canvas.writes(site, heads[0]).flatten(0, 1)
        common = writes.mean(0).norm() / writes.norm(dim=-1).mean()
        return self.drawn(canvas, site, heads) > 0.7 and bool(common > 0.5)
