"""What a probing run costs: network passes that all measures share, and memory that does not grow with the images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import timm
import torch
from torch import nn

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.data.batch import Batch
from mhprobe.heads import KINDS, Ablation, Patching
from mhprobe.measures.fisher import Fisher
from mhprobe.recording.measuring import needs_of
from mhprobe.recording.record import forward_equivalents


def run(size: Size) -> Iterator[Ratio]:
    model = small_vit(size.pick(2, 6)).eval()
    layout = mhprobe.attach(model).layout
    needs = needs_of(build(name, layout) for name in MEASURES)
    batch = Batch(
        torch.randn(4, 3, 32, 32), torch.arange(4), torch.arange(4), torch.ones(4, dtype=torch.bool)
    )
    passes = forward_equivalents(
        model, batch, {n for n in needs if not isinstance(n, Ablation | Patching)}
    )
    masked = forward_equivalents(model, batch, needs) - passes
    yield single(
        "all measures, without ablation: operations / forward",
        passes,
        "<= 6",
        f"{len(MEASURES)} measures",
    )
    yield single("  beside it: masked passes of ablation / forward", masked)
    both = small_vit(size.pick(2, 6)).eval()
    needs = Fisher(mhprobe.attach(both, units=KINDS).layout).needs
    whole = (
        forward_equivalents(both, batch, needs) / 3
    )  # a training step's pass: one forward, two backward
    yield single(
        "choosing among heads and neurons, Fisher information: forward-backward passes",
        whole,
        "<= 3",
    )
    names = size.pick(MEASURES[:2], MEASURES)
    yield from _memory(
        names, size.pick(20, 500, 1_000), size.pick(40, 2_500, 10_000), size.pick(20, 100)
    )


def _memory(names: Sequence[str], few: int, many: int, batch: int) -> Iterator[Ratio]:
    """Peak resident memory of a fresh process after many images / after few, measure by measure.

    Most of it is the libraries' own, so this sees what grows by megabytes; that a measure's sums do
    not grow at all is one of the contract tests.
    """
    jobs = [(name, few, many, batch) for name in names]
    for name, (before, after) in zip(names, in_forks("benchmarks.probe", jobs), strict=True):
        yield single(f"{name}: peak memory at {many:,} images / {few:,}", after / before, "<= 1.1")


def _tiny() -> nn.Module:
    torch.manual_seed(0)
    options = {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 48,
        "num_heads": 3,
        "depth": 2,
        "reg_tokens": 2,
    }
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **options).eval()


def in_fork(name: str, few: int, many: int, batch: int) -> list[int]:
    """Feed a measure on random images, drawn batch by batch; the peaks in KiB after few images and after many."""
    model = _tiny()
    measure, peaks = build(name, mhprobe.attach(model).layout), []
    if measure.select_needs is not None:
        for number in range(2):
            measure.select(
                mhprobe.record(model, **_draw(number, batch), needs=measure.select_needs)
            )
        measure.end_select()
    for number in range(many // batch):
        measure.update(mhprobe.record(model, **_draw(number, batch), needs=measure.needs))
        if (number + 1) * batch in (few, many):
            measure.columns()
            peaks.append(peak())
    return peaks


def _draw(seed: int, batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    patch = torch.ones(1, 8, 8, dtype=torch.long)
    return {
        "images": torch.randn(batch, 3, 32, 32, generator=generator),
        "labels": torch.randint(0, 5, (batch,), generator=generator),
        "objects": torch.randint(0, 3, (batch, 4, 4), generator=generator).kron(patch),
    }
