"""Masking every head alone (AblationDelta, the first step of a search): shared blocks against whole forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.utils.flop_counter import FlopCounterMode

import mhprobe
from benchmarks.harness.models import small_vit, whole_model
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single
from mhprobe.recording.replay import Replay


def run(size: Size) -> Iterator[Ratio]:
    model = small_vit(size.pick(2, 6)).eval()
    layout = mhprobe.attach(model).layout
    images = torch.randn(size.pick(2, 16), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    masks = torch.eye(layout.num_heads, dtype=torch.bool)
    whole, shared = whole_model(model, images, masks), Replay(model, masks)(images)
    if not torch.equal(whole.argmax(-1), shared.argmax(-1)):
        raise RuntimeError("the predictions differ")
    ratio = flops(lambda: whole_model(model, images, masks)) / flops(
        lambda: Replay(model, masks)(images)
    )
    yield single(
        "all heads alone: FLOPs through the whole model / with shared blocks", ratio, ">= 1.8"
    )
    yield compare(
        "all heads alone: time through the whole model / with shared blocks",
        lambda: whole_model(model, images, masks),
        lambda: Replay(model, masks)(images),
        rounds=size.rounds(5),
        limit=">= 1.6",
    )


def flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()
