"""What `mhprobe diff` takes for a ViT-S/14 at 112 px and its dynamic int8 export: CPU seconds, and memory.

Weights are random, which neither sees. Each step is a fork of its own: the export's memory is not the comparison's.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import scipy.special  # what a comparison imports counts as the library's
import timm
import torch

import mhprobe
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.pages.diffing import page
from mhprobe.surgery.export import onnx_bytes

IMPORTED = (onnxruntime, scipy.special, page)
AIMS = ("<= 360", "<= 3.2")


def run(size: Size) -> Iterator[Ratio]:
    images, blocks = size.pick((4, 2), (200, 12))
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "vit.onnx"))
        jobs = [("write", file, blocks, 0), ("compare", file, blocks, images)]
        _, (seconds, networks) = in_forks("benchmarks.exports", jobs)
    what = f"ViT-S/14 at 112 px and its int8 export, {images} images"
    yield single(f"{what}: seconds of CPU", seconds, AIMS[0], "two cores for 3 minutes")
    name = f"{what}: peak memory over the libraries / the network"
    yield single(name, networks, AIMS[1], "two networks and 100 MB of passes")


def in_fork(step: str, file: str, blocks: int, images: int) -> list[float]:
    """Seconds of CPU, and memory over that of the libraries, as a multiple of the network's."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    before = peak()
    shape: dict[str, Any] = {"img_size": 112, "num_classes": 10, "depth": blocks}
    model = timm.create_model("vit_small_patch14_dinov2", **shape).eval()
    if step == "write":
        _quantised(model, Path(file))
        return [0.0, 0.0]
    start = time.process_time()
    pictures = torch.randn(images, 3, 112, 112)
    mhprobe.diff(model, file, pictures, limit=images, show_progress=False)
    network = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return [time.process_time() - start, 1024 * (peak() - before) / network]


def _quantised(model: Any, file: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    plain = file.with_suffix(".plain")
    plain.write_bytes(onnx_bytes(model, torch.randn(2, 3, 112, 112)))
    logging.disable(logging.WARNING)
    quantize_dynamic(plain, file, op_types_to_quantize=["MatMul", "Gemm"])
