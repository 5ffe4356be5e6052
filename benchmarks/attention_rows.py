"""What attention of one query costs beside the plain, fused forward pass of the same image: time, and peak memory.

The same by hooks that a user writes, and by the matrices of all blocks, as pages that draw single
weights take them (BertViz). Behind it all measures of attention of one image together, beside the unfused forward pass.

A ViT-S/14 at 518 pixels has 1,370 tokens, and at 1,022 pixels 5,330. Weights are random, which cost
does not see. Memory is what a fresh process takes beyond what it had with the model and the image.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import timm
import torch
from torch import nn

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single
from mhprobe.backbones import family_of
from mhprobe.data.batch import Batch
from mhprobe.recording.measuring import feed

AIM = "<= 1.1"
QUERIES = {"class": AIM, "mean": ""}
MEASURED = "measures"
HOOKS, MATRICES = "hooks by hand", "matrices of all blocks"  # other ways to the class token's rows


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
    for way in (HOOKS, MATRICES):
        what = f"ViT-S/14 at {pixels} px, attention of class by {way}: time / its fused forward"
        other = functools.partial(_otherwise, model, image, way)
        yield compare(what, other, forward, size.pick(1, 7))
    plain, *memory = in_forks(
        "benchmarks.attention_rows", [(pixels, way) for way in ("", HOOKS, MATRICES)]
    )
    for way, took in zip((HOOKS, MATRICES), memory, strict=True):
        what = f"ViT-S/14 at {pixels} px, attention of class by {way}: memory / its fused forward"
        yield single(what, took / max(plain, 1.0), "", f"{took:.0f} MiB / {plain:.0f} MiB")
    for side in (pixels, larger):
        jobs = [(side, query) for query in ("", *QUERIES)]
        plain, *memory = in_forks("benchmarks.attention_rows", jobs)
        for (query, aim), took in zip(QUERIES.items(), memory, strict=True):
            what = f"ViT-S/14 at {side} px, attention of {query}: memory / its fused forward"
            note = f"{took:.0f} MiB / {plain:.0f} MiB"
            yield single(what, took / max(plain, 1.0), aim, note)
    yield from _of_measures(size.pick(84, 518))


def _of_measures(pixels: int) -> Iterator[Ratio]:
    """All measures of attention together, on one image."""
    model, batch = _model(pixels), _batch(pixels)

    def unfused() -> None:
        with torch.no_grad(), family_of(model).materialised(model):
            model(batch.images)

    what = f"ViT-S/14 at {pixels} px, all measures of attention, batch 1"
    yield compare(
        f"{what}: time / its unfused forward", lambda: _measured(model, batch), unfused, 1, "<= 6"
    )
    (took,) = in_forks("benchmarks.attention_rows", [(pixels, MEASURED)])
    yield single(f"{what}: memory beyond the network (MiB)", took, "<= 400")


def _otherwise(model: nn.Module, image: torch.Tensor, way: str) -> list[torch.Tensor]:
    """Per block the class token's row (1, H, N)."""
    found: list[torch.Tensor] = []

    def row(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        query, key, _ = output.unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query[:, :, :1] @ key.mT * query.shape[-1] ** -0.5
        found.append(scores.softmax(-1)[:, :, 0])

    def matrix(_: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        found.append(output)

    with contextlib.ExitStack() as hooks, torch.no_grad():
        if way == MATRICES:
            hooks.enter_context(family_of(model).materialised(model))
        for block in model.blocks:
            block.attn.qkv.heads = block.attn.num_heads
            at = (block.attn.qkv, row) if way == HOOKS else (block.attn.attn_drop, matrix)
            hooks.callback(at[0].register_forward_hook(at[1]).remove)
        model(image)
    return [weights if weights.dim() == 3 else weights[:, :, 0] for weights in found]


def _measured(model: nn.Module, batch: Batch) -> None:
    layout = mhprobe.attach(model).layout
    every = {name: build(name, layout) for name in MEASURES}
    of_attention = {name: measure for name, measure in every.items() if measure.by_rows}
    with warnings.catch_warnings(action="ignore"):  # of so few images
        refused = feed(model, of_attention, lambda: [batch])
    assert not refused, refused


def _batch(pixels: int) -> Batch:
    objects = torch.zeros(1, pixels, pixels, dtype=torch.long)
    objects[:, : pixels // 2, : pixels // 2] = 1
    return Batch.whole(torch.randn(1, 3, pixels, pixels), torch.zeros(1).long(), objects)


def in_fork(pixels: int, query: str) -> float:
    """MiB beyond the model and the image; query "": of the forward pass, MEASURED: of all measures of attention."""
    model, image = _model(pixels), torch.randn(1, 3, pixels, pixels)
    batch = _batch(pixels)
    before = peak()
    if query == MEASURED:
        _measured(model, batch)
    elif query in (HOOKS, MATRICES):
        _otherwise(model, image, query)
    elif query:
        mhprobe.attention(model, image, query=query)
    else:
        with torch.no_grad():
            model(image)
    return (peak() - before) / 1024


def _model(pixels: int) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=pixels, num_classes=4).eval()
    mhprobe.attach(model)
    return model
