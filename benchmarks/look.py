"""What ``mhprobe look`` takes of a ViT-S/14 and twelve photographs: time, memory, and the size of its page.

Photographs are crops of scikit-learn's two. Weights are random, which cost does not see: attention
that is nearly even packs worse than that of a trained network.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from PIL import Image

import mhprobe
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.pages.looking import sentences  # noqa: F401 -- imported before memory is counted

NAME = "vit_small_patch14_dinov2"


def run(size: Size) -> Iterator[Ratio]:
    count, sides = size.pick(2, 12), size.pick((28,), (224, 518))
    jobs = [(side, count) for side in sides]
    for (side, _), took in zip(jobs, in_forks("benchmarks.look", jobs), strict=True):
        what = f"look, ViT-S/14, {count} photographs at {side} px"
        largest = side == sides[-1]
        yield single(
            f"{what}: time / a forward pass of them",
            took["seconds"] / took["forward"],
            note=f"{took['seconds']:.0f} s / {took['forward']:.1f} s, two threads",
        )
        aim = "<= 120" if largest else ""
        yield single(f"{what}: seconds", took["seconds"], aim, "two threads")
        yield single(f"{what}: memory beyond the network (MiB)", took["memory"])
        yield single(f"{what}: page (MB)", took["page"], "<= 30" if largest else "")


def in_fork(side: int, count: int) -> dict[str, float]:
    """Seconds of ``look`` and of a forward pass of the photographs, MiB beyond the network, MB of the page."""
    warnings.simplefilter("ignore")  # of so few images
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = timm.create_model(NAME, img_size=side, num_classes=4).eval()
    with tempfile.TemporaryDirectory() as folder:
        _photographs(Path(folder), count)
        images = torch.randn(1, 3, side, side)
        before, began = peak(), time.perf_counter()
        with torch.no_grad():
            for _ in range(count):
                model(images)
        forward, began = time.perf_counter() - began, time.perf_counter()
        page = mhprobe.look(model, folder, limit=count, show_progress=False)
        return {
            "seconds": time.perf_counter() - began,
            "forward": forward,
            "memory": (peak() - before) / 1024,
            "page": page.save(Path(folder) / "look.html").stat().st_size / 1e6,
        }


def _photographs(folder: Path, count: int) -> None:
    """Write square crops of scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_images

    for number in range(count):
        whole = load_sample_images().images[number % 2]
        height, width = whole.shape[:2]
        side = 300
        down = (height - side) * (number % 3) // 2
        across = (width - side) * (number % 5) // 4
        crop = whole[down : down + side, across : across + side]
        Image.fromarray(crop).save(folder / f"{number:02d}.jpg")
