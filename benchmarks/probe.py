"""What a probing run costs: network passes that all measures share, and memory that does not grow with the images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import mhprobe
from benchmarks.harness.measures import YAMLS, build
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.data.batch import Batch
from mhprobe.heads import Ablation, Patching
from mhprobe.recording.cost import forward_equivalents
from mhprobe.recording.measuring import needs_of

BATCH = 100


def run(size: Size) -> Iterator[Ratio]:
    model = small_vit().eval()
    layout = mhprobe.attach(model).layout
    needs = needs_of(build(yaml, layout) for yaml in YAMLS)
    batch = Batch(torch.randn(4, 3, 32, 32), torch.arange(4), torch.arange(4), torch.ones(4, dtype=torch.bool))
    passes = forward_equivalents(model, batch, {n for n in needs if not isinstance(n, Ablation | Patching)})
    masked = forward_equivalents(model, batch, needs) - passes
    yield single("all measures, without ablation: operations / forward", passes, "<= 6", f"{len(YAMLS)} measures")
    yield single("  beside it: masked passes of ablation / forward", masked)
    yield from _memory(size.pick(100, 500, 1_000), size.pick(200, 2_500, 10_000))


def _memory(few: int, many: int) -> Iterator[Ratio]:
    """Peak resident memory of a fresh process after many images / after few, measure by measure.

    Most of it is the libraries' own, so this sees what grows by megabytes; that a measure's sums do not grow at all is
    one of the contract tests.
    """
    command = [sys.executable, "-m", "benchmarks.probe", str(few), str(many)]
    single_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=single_thread) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, before, after = json.loads(line)
            yield single(f"{name}: peak memory at {many:,} images / {few:,}", after / before, "<= 1.1")
    if process.returncode:
        raise RuntimeError(f"a measure's process ended with {process.returncode}")


def _watch(few: int, many: int) -> None:
    """Every measure in a fork of its own, so that libraries are imported once; one line of JSON for each."""
    model = _tiny()
    for yaml in YAMLS:
        child = os.fork()
        if child == 0:
            print(json.dumps([yaml.stem, *_peaks(yaml, model, few, many)]), flush=True)
            os._exit(0)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{yaml.stem} ended with {code}")


def _tiny() -> nn.Module:
    import timm

    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "depth": 2, "reg_tokens": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **options).eval()


def _peaks(yaml: Path, model: nn.Module, few: int, many: int) -> list[int]:
    """Feed a measure on random images, drawn batch by batch; the peaks in KiB after few images and after many."""
    import resource

    layout = mhprobe.attach(model).layout
    measure, peaks = build(yaml, layout), []
    if measure.select_needs is not None:
        for number in range(2):
            measure.select(mhprobe.record(model, **_draw(number), needs=measure.select_needs))
        measure.end_select()
    for number in range(many // BATCH):
        measure.update(mhprobe.record(model, **_draw(number), needs=measure.needs))
        if (number + 1) * BATCH in (few, many):
            measure.columns()
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peaks


def _draw(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    patch = torch.ones(1, 8, 8, dtype=torch.long)
    return {
        "images": torch.randn(BATCH, 3, 32, 32, generator=generator),
        "labels": torch.randint(0, 5, (BATCH,), generator=generator),
        "objects": torch.randint(0, 3, (BATCH, 4, 4), generator=generator).kron(patch),
    }


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]))
