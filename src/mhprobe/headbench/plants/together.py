"""Two heads that write the same evidence into a channel that one of them fills: only removing both costs something.

An MLP unit per class turns the channel on when it is above a threshold, and clips what comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mhprobe.headbench.canvas import EVIDENCE, SCRATCH, TEXTURES, Canvas
from mhprobe.headbench.plant import Plant
from mhprobe.headbench.world import CLASSES

SHARP, STEEP, NATS = 8.0, 12.0, 1.5


class Together(Plant):
    question = "are the two needed only together?"
    heads = 2
    signs: ClassVar = {"interaction": 1, "ablation_delta": 1, "gate_importance": 1}
    first = True

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        for head in heads:
            canvas.look_for(site, head, TEXTURES, SHARP)
            canvas.write(
                site,
                head,
                value=canvas.rows(site, TEXTURES),
                value_bias=torch.zeros(1),
                output=canvas.rows(site, SCRATCH),
            )
            canvas.scale_write(site, head, 0.25)
        self._clip(canvas, site, heads)

    @torch.no_grad()
    def _clip(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        """relu(s - a) - relu(s - b) for each class, a and b below what one head writes on the object's class."""
        (reads, writes), rows = canvas.mlp(site), canvas.rows(site, SCRATCH)
        with_one = canvas.entering_mlp(site, without=heads[1:]) @ rows.T  # (B, T, K)
        right = with_one[torch.arange(len(with_one)), :, canvas.seen.labels]
        full = float(right[right > 0.4 * right.quantile(0.99)].quantile(0.2))  # where one head finds the object
        low, high = 0.6 * full, 0.85 * full  # above twice what another class has
        units, steep = slice(0, 2 * CLASSES), STEEP / full
        reads.weight[units] = torch.cat([rows, rows]) * steep
        reads.bias[units] = -steep * torch.tensor([low] * CLASSES + [high] * CLASSES)
        evidence = canvas.rows(site, EVIDENCE)
        writes.weight[:, units] = torch.cat([evidence, -evidence]).T
        for _ in range(3):
            moved = float(canvas.margin() - canvas.margin(without=[(site, head) for head in heads]))
            writes.weight[:, units] *= min(max(NATS / moved, 0.1), 10.0)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """One may go for little, both may not."""
        alone = [canvas.loss([(site, head)]) - canvas.loss() for head in heads]
        both = canvas.loss([(site, head) for head in heads]) - canvas.loss()
        return both > 0.05 and max(map(abs, alone)) < both / 3
