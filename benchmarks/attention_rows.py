"""What attention of one query costs beside the plain, fused forward pass of the same image: time, and peak memory.

A ViT-S/14 at 518 pixels has 1,370 tokens, and at 1,022 pixels 5,330. Weights are random, which cost
does not see. Memory is what a fresh process takes beyond what it had with the model and the image.
"""

from __future__ import annotations

from collections.abc import Iterator

import timm
import torch
from torch import nn

import mhprobe
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single

AIM = "<= 1.1"
QUERIES = {"class": AIM, "mean": ""}


def run(size: Size) -> Iterator[Ratio]:
    pixels, larger = size.pick((28, 56), (518, 1022))
    model, image = _model(pixels), torch.randn(1, 3, pixels, pixels)

    def forward() -> None:
        with torch.no_grad():
            model(image)

    def attention(query: str) -> None:
        mhprobe.attention(model, image, query=query)

    for query, aim in QUERIES.items():
        what = f"ViT-S/14 at {pixels} px, attention of {query}: time / its fused forward"
        yield compare(what, lambda query=query: attention(query), forward, size.pick(1, 7), aim)  # type: ignore[misc]
    for side in (pixels, larger):
        jobs = [(side, query) for query in ("", *QUERIES)]
        plain, *memory = in_forks("benchmarks.attention_rows", jobs)
        for (query, aim), took in zip(QUERIES.items(), memory, strict=True):
            what = f"ViT-S/14 at {side} px, attention of {query}: memory / its fused forward"
            note = f"{took:.0f} MiB / {plain:.0f} MiB"
            yield single(what, took / max(plain, 1.0), aim, note)


def in_fork(pixels: int, query: str) -> float:
    """MiB beyond the model and the image; query "": of the forward pass."""
    model, image = _model(pixels), torch.randn(1, 3, pixels, pixels)
    before = peak()
    if query:
        mhprobe.attention(model, image, query=query)
    else:
        with torch.no_grad():
            model(image)
    return (peak() - before) / 1024


def _model(pixels: int) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=pixels).eval()
    mhprobe.attach(model)
    return model
