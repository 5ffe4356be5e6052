"""What a ViT-S/14 at 518 px takes: peak memory of a fresh process for each measure, attention and each kind of map.

An image has 1,370 tokens, so its attention weights alone take half a gigabyte. Weights are random: memory does not ask
what they are. Batches are as large as those of a folder of photographs, which is more than fits at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import timm
import torch
from hydra.utils import instantiate

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.data.batch import Batch
from mhprobe.run.members import members

AIM = "<= 8"
FEW = ("attention", "entropy", "js_distance", "no_op")  # what takes most, and what is asked most


def run(size: Size) -> Iterator[Ratio]:
    every = ["attention", *MEASURES, *(f"maps.{kind}" for kind in members("maps"))]
    pixels, images = size.pick(28, 518), 9  # js_distance holds eight
    names = size.pick(FEW[:1], FEW, tuple(every))
    for name, took in zip(
        names, in_forks("benchmarks.memory", [(name, pixels, images) for name in names]), strict=True
    ):
        yield single(f"{name}, ViT-S/14 at {pixels} px: peak memory (GiB)", took, AIM, f"{images} images")


def in_fork(name: str, pixels: int, images: int) -> float:
    """GiB of a process that has imported everything."""
    warnings.simplefilter("ignore")  # of so few images
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=pixels, num_classes=4).eval()
    batch = torch.randn(images, 3, pixels, pixels)
    labels = torch.arange(images) % 4
    if name == "attention":
        mhprobe.attention(model, batch)
    elif name.startswith("maps."):
        mhprobe.attach(model)
        instantiate(members("maps")[name.removeprefix("maps.")])(model, batch[:2], labels[:2])
    else:
        shown = torch.zeros(images, pixels, pixels, dtype=torch.long)
        shown[:, : pixels // 2, : pixels // 2] = 1
        mhprobe.measure(model, [Batch.whole(batch, labels, shown)], [lambda layout: build(name, layout)])
    return peak() / 2**20
