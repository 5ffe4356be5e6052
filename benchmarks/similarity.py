"""Similarity of heads: streamed second moments against the original authors' pairwise procedure.

The size is that of a 12 x 12-head model of head width 16 over 10,000 images of 65 tokens (2,000
unless all is asked for). Across layers it is a tenth of the images, since the time of both sides
grows with the rows. Every pair costs NumPy the same, so a sample of pairs is timed at the full
number of rows, and scaled to all of them.

Times are of the CPU, on one thread. What is streamed compares each pair 19 times (the value, eight
folds of the interval, ten draws of chance), NumPy once, however many rows there are: ratios are
lower where rows are few.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.harness import timing
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures import CCA, CKA, PWCCA, SVCCA, Procrustes
from mhprobe.measures.base import Measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LAYERS, HEADS, WIDTH, TOKENS, BATCH = 12, 12, 16, 65, 100
SAMPLE = 3  # pairs
seconds = partial(timing.seconds, clock=time.process_time)
compare = partial(timing.compare, clock=time.process_time)


def layout(layers: int) -> HeadLayout:
    return HeadLayout(
        tuple(HeadSite(f"blocks.{i}.attn", 0, i, HEADS, WIDTH) for i in range(layers))
    )


def batches(count: int, layers: int = 1) -> list[HeadBatch]:
    """Correlated random heads, float32 as a model gives them."""
    generator = torch.Generator().manual_seed(0)
    mixes = torch.randn(layers, HEADS * WIDTH, HEADS * WIDTH, generator=generator)
    pieces = []
    for _ in range(count):
        z = [torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=generator) @ mix for mix in mixes]
        pieces.append(
            HeadBatch(
                z=tuple(x.unflatten(-1, (HEADS, WIDTH)) for x in z),
                logits=torch.zeros(BATCH, 1),
                valid=torch.ones(BATCH, dtype=torch.bool),
                images=torch.randn(BATCH, 3, 32, 32, generator=generator),
            )
        )
    return pieces


def stream(kinds: list[Callable[[HeadLayout], Measure]], few: list[HeadBatch], images: int) -> None:
    """All measures over so many images: the same few batches again and again, as if they were new."""
    measures = [kind(layout(len(few[0].z))) for kind in kinds]
    for number in range(images // BATCH):
        batch = few[number % len(few)]
        fresh = HeadBatch(
            z=batch.z, logits=batch.logits, valid=batch.valid, images=batch.images
        )  # nothing derived yet
        for measure in measures:
            measure.update(fresh)
    for measure in measures:
        measure.compute()


def at_size(pairs: Literal["layer", "all"], images: int, layers: int) -> Ratio:
    """A model of so many layers of 12 heads: the pairs within its layers, or all of them."""
    from oracles.svcca import similarity

    few, count = batches(3, layers), images * TOKENS
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((count, 2 * WIDTH)) @ generator.standard_normal(
        (2 * WIDTH, 2 * WIDTH)
    )
    group = HEADS if pairs == "layer" else HEADS * layers
    number = layers * HEADS * (group - 1) // 2
    pair = [seconds(lambda: similarity(rows[:, :WIDTH], rows[:, WIDTH:])) for _ in range(SAMPLE)]
    streamed = seconds(lambda: stream([partial(SVCCA, pairs=pairs)], few, images))
    ratios = [number * one / streamed for one in sorted(pair)]
    what = (
        f"SVCCA of {layers} x {HEADS} heads (d={WIDTH}), {number:,} pairs ({pairs}), {count:,} "
        "rows: "
        f"pairwise NumPy ({SAMPLE} pairs timed, scaled to all) / streamed"
    )
    aim = ">= 100" if pairs == "layer" else ">= 60"
    return Ratio(
        what,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        SAMPLE,
        aim,
        f"streamed {streamed:.0f} s",
    )


def run(size: Size) -> Iterator[Ratio]:
    with threadpool_limits(1):
        yield from rows_of(size)


def rows_of(size: Size) -> Iterator[Ratio]:
    from oracles.svcca import similarity

    images, layers = size.pick(200, 2_000, 10_000), size.pick(2, LAYERS)
    yield at_size("layer", images, layers)
    yield at_size("all", max(100, images // 10), layers)
    few = batches(size.pick(1, 5))
    rows = np.concatenate([batch.z[0].flatten(0, 1).double().numpy() for batch in few])

    def pairwise() -> list[float]:
        return [similarity(rows[:, a], rows[:, b]) for a in range(HEADS) for b in range(a)]

    what = f"SVCCA of {HEADS} heads (d={WIDTH}), {len(rows):,} rows: pairwise NumPy / streamed"
    yield compare(
        what, pairwise, lambda: stream([SVCCA], few, len(few) * BATCH), size.rounds(5), ">= 40"
    )

    every, count = [SVCCA, CCA, PWCCA, CKA, Procrustes], size.pick(100, 2_000)
    yield compare(
        "SVCCA, CCA, PWCCA, CKA and Procrustes in one run / SVCCA alone",
        lambda: stream(every, few, count),
        lambda: stream([SVCCA], few, count),
        size.rounds(5),
        "<= 2",
    )
    growth = sums(size.pick(4, 20)) / sums(2)
    yield single("SVCCA, bytes kept after many images / after 200", growth, "<= 1")


def sums(count: int) -> int:
    """Bytes that SVCCA keeps after so many batches."""
    measure = SVCCA(layout(1))
    for batch in batches(count):
        measure.update(batch)
    return sum(getattr(measure, state).nbytes for state in measure._defaults)
