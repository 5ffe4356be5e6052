"""What it takes to measure attention weights: peak memory for a batch, beside the model's own unfused forward of it.

A recorded pass keeps the weights and the outputs of all blocks until the measures have seen them, which is why a batch
is measured in pieces. What counts is what a fresh process takes beyond what it had with the model and the images.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import torch

from benchmarks.harness.models import small_swin, small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single

AIM = "<= 1.1"


def run(size: Size) -> Iterator[Ratio]:
    names = size.pick(("small_vit",), ("deit_small_patch16_224", "swin_tiny_patch4_window7_224"))
    images = size.pick(2, 128)
    for name in names:
        own, recorded = (_growth(name, images, what) for what in ("forward", "measured"))
        note = f"{images} images: {recorded:.0f} MiB / {own:.0f} MiB"
        what = f"{name}, attention weights of all blocks measured: memory / its own unfused forward"
        yield single(what, recorded / max(own, 1.0), AIM, note)


def _growth(*arguments: object) -> float:
    """MiB, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.attention", *map(str, arguments)]
    single_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=single_thread, check=True)
    return float(json.loads(done.stdout))


def _main(name: str, count: int, what: str) -> None:
    import timm

    import mhprobe
    from mhprobe.backbones import family_of, input_spec

    small = {"small_vit": small_vit, "small_swin": small_swin}
    model = small[name]() if name in small else timm.create_model(name)
    mhprobe.attach(model.eval())
    images = torch.randn(count, 3, *input_spec(model)["size"])
    before = _peak()
    with torch.no_grad():
        if what == "measured":
            mhprobe.measure(model, [(images, torch.zeros(count, dtype=torch.long))], [mhprobe.measures.Entropy])
        else:
            with family_of(model).materialised(model):
                model(images)
    print(json.dumps((_peak() - before) / 1024))


def _peak() -> int:
    """KiB of resident memory, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
