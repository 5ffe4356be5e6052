"""SVCCA between all heads of a layer: streamed second moments against the original authors' pairwise procedure."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import Ratio, compare
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures import SVCCA

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

HEADS, WIDTH, TOKENS, BATCH = 12, 16, 65, 100


def batches(count: int) -> list[HeadBatch]:
    """Correlated random heads, float32 as a model gives them."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(HEADS * WIDTH, HEADS * WIDTH, generator=generator)
    made = []
    for _ in range(count):
        z = torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=generator) @ mix
        made.append(
            HeadBatch(
                z=(z.unflatten(-1, (HEADS, WIDTH)),),
                logits=torch.zeros(BATCH, 1),
                valid=torch.ones(BATCH, dtype=torch.bool),
            )
        )
    return made


def run() -> list[Ratio]:
    from oracles.svcca import similarity

    layout = HeadLayout((HeadSite("blocks.0.attn", 0, 0, HEADS, WIDTH),))
    few = batches(5)
    rows = np.concatenate([batch.z[0].flatten(0, 1).double().numpy() for batch in few])

    def streamed() -> torch.Tensor:
        measure = SVCCA(layout)
        for batch in few:
            measure.update(batch)
        return measure.compute()

    def pairwise() -> list[float]:
        return [similarity(rows[:, a], rows[:, b]) for a in range(HEADS) for b in range(a)]

    what = f"SVCCA of {HEADS} heads (d={WIDTH}), {len(rows):,} rows: pairwise NumPy / streamed"
    speed = compare(what, pairwise, streamed, rounds=5, limit=">= 10")

    def sums(count: int) -> int:
        measure = SVCCA(layout)
        for batch in batches(count):
            measure.update(batch)
        return sum(getattr(measure, state).nbytes for state in measure._defaults)

    growth = sums(20) / sums(2)
    return [speed, Ratio("SVCCA, bytes kept after 2,000 images / after 200", growth, growth, growth, 1, "<= 1")]
