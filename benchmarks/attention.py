"""What it takes to measure attention weights: peak memory for a batch, beside the model's own unfused forward of it.

A recorded pass keeps the weights and the outputs of all blocks until the measures have seen them,
which is why a batch is measured in pieces. What counts is what a fresh process takes beyond what it
had with the model and the images.
"""

from __future__ import annotations

from collections.abc import Iterator

import timm
import torch

import mhprobe
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.backbones import family_of, input_spec

AIM = "<= 1.1"


def run(size: Size) -> Iterator[Ratio]:
    names = size.pick(("small_vit",), ("deit_small_patch16_224", "swin_tiny_patch4_window7_224"))
    images = size.pick(2, 128)
    for name in names:
        unfused, recorded = in_forks(
            "benchmarks.attention", [(name, images, what) for what in ("forward", "measured")]
        )
        note = f"{images} images: {recorded:.0f} MiB / {unfused:.0f} MiB"
        what = f"{name}, attention weights of all blocks measured: memory / its own unfused forward"
        yield single(what, recorded / max(unfused, 1.0), AIM, note)


def in_fork(name: str, count: int, what: str) -> float:
    """MiB beyond the model and the images."""
    model = small_vit() if name == "small_vit" else timm.create_model(name)
    mhprobe.attach(model.eval())
    images = torch.randn(count, 3, *input_spec(model)["size"])
    before = peak()
    with torch.no_grad():
        if what == "measured":
            mhprobe.measure(
                model, [(images, torch.zeros(count, dtype=torch.long))], [mhprobe.measures.Entropy]
            )
        else:
            with family_of(model).materialised(model):
                model(images)
    return (peak() - before) / 1024
