"""What a ViT-S/14 at 518 px takes: peak memory of a fresh process for each measure, attention and each kind of map.

An image has 1,370 tokens: its attention weights alone take half a gigabyte. Weights are random,
which memory does not see. The images come as one batch, which has to be taken apart.
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
from mhprobe.framework.run.members import members

AIM = "<= 8"
FEW = ("attention", "entropy", "svcca")
IMAGES = {"js_distance": 9}  # of which it holds eight


def run(size: Size) -> Iterator[Ratio]:
    every = ("attention", *MEASURES, *(f"maps.{kind}" for kind in members("maps")))
    names, pixels = size.pick(FEW[:2], FEW, every), size.pick(28, 518)
    jobs = [(name, pixels, IMAGES.get(name, 3)) for name in names]
    for (name, _, images), took in zip(jobs, in_forks("benchmarks.memory", jobs), strict=True):
        yield single(
            f"{name}, ViT-S/14 at {pixels} px: peak memory (GiB)", took, AIM, f"{images} images"
        )


def in_fork(name: str, pixels: int, images: int) -> float:
    """GiB of the whole process."""
    warnings.simplefilter("ignore")  # of so few images
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=pixels, num_classes=4).eval()
    pictures, labels = torch.randn(images, 3, pixels, pixels), torch.arange(images) % 4
    if name == "attention":
        mhprobe.attention(model, pictures)
    elif name.startswith("maps."):
        instantiate(members("maps")[name.removeprefix("maps.")])(model, pictures[:1], labels[:1])
    else:
        objects = torch.zeros(images, pixels, pixels, dtype=torch.long)
        objects[:, : pixels // 2, : pixels // 2] = 1
        batch = Batch.whole(pictures, labels, objects)
        mhprobe.measure(model, [batch], [lambda layout: build(name, layout)])
    return peak() / 2**20
