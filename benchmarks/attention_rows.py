"""What attention of one query costs beside the plain, fused forward pass of the same image: time, and peak memory.

The same by hooks that a user writes, by nnsight where it is installed, and by the matrices of all
blocks, as pages that draw single weights take them (BertViz). Behind it all measures of attention
together: of one large image, beside the unfused forward pass; of a batch of small images, by rows
and by the matrices of all blocks; and six of them for a ViT-L.

A ViT-S/14 at 518 pixels has 1,370 tokens, and at 1,022 pixels 5,330. Weights are random, which cost
does not see. Memory is what a fresh process takes beyond what it had with the model and the image.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import statistics
import time
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import timm
import torch
from torch import nn

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.memory import in_forks, peak
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, from_rounds, single
from mhprobe.backbones import family_of
from mhprobe.data.batch import Batch
from mhprobe.recording.measuring import Passes, feed, read_as

AIM = "<= 1.1"
QUERIES = {"class": AIM, "mean": ""}
MEASURED = "measures"
HOOKS, NNSIGHT, MATRICES = "hooks by hand", "nnsight", "matrices of all blocks"
BY_MATRICES = "measures by matrices"
MATRIX = ("attn", "attn_grad")
LARGE = "ViT-L"
SIX = ("entropy", "attention_distance", "attention_range", "position", "sinks", "no_op")


def run(size: Size) -> Iterator[Ratio]:
    pixels, larger = size.pick((28, 56), (518, 1022))
    installed = importlib.util.find_spec("nnsight") is not None
    ways = [HOOKS, *[NNSIGHT] * installed, MATRICES]  # other ways to the class token's rows
    yield from _times(pixels, ways, size.pick(1, 7))
    several, small, images = size.pick((84, 84, 2), (518, 224, 32))
    repeats = size.rounds(3)
    each = [(side, query, 1) for side in (pixels, larger) for query in ("", *QUERIES, *ways)]
    # peaks of one process and its forks are alike, and differ from those of the next by half
    runs = [list(in_forks("benchmarks.attention_rows", each)) for _ in range(repeats)]
    taken = dict(zip(each, zip(*runs, strict=True), strict=True))
    for side in (pixels, larger):
        yield from _memory(side, {way: taken[side, way, 1] for way in ("", *QUERIES, *ways)})
    jobs = [
        (several, MEASURED, 1),
        (small, MEASURED, images),
        (small, BY_MATRICES, images),
        (size.pick(28, 518), LARGE, size.pick(2, 24)),
    ]
    of_all, by_rows, by_matrices, large = in_forks("benchmarks.attention_rows", jobs)
    yield from _of_measures(several, of_all, repeats)
    yield from _of_a_batch(small, images, by_rows, by_matrices)
    yield from _of_a_large_network(*jobs[-1][:1], large)


def _times(pixels: int, ways: Collection[str], rounds: int) -> Iterator[Ratio]:
    """Attention of one query, by mhprobe and by other ways, over the fused forward pass."""
    model, image = _model(pixels), torch.randn(1, 3, pixels, pixels)

    def forward() -> None:
        with torch.no_grad():
            model(image)

    for query, aim in QUERIES.items():
        what = f"ViT-S/14 at {pixels} px, attention of {query}: time / its fused forward"
        asked = functools.partial(mhprobe.attention, model, image, query=query)
        yield compare(what, asked, forward, rounds, aim)
    for way in ways:
        what = f"ViT-S/14 at {pixels} px, attention of class by {way}: time / its fused forward"
        yield compare(what, functools.partial(_otherwise, model, image, way), forward, rounds)


def _memory(side: int, taken: dict[str, tuple[float, ...]]) -> Iterator[Ratio]:
    """The same in memory. taken: MiB of "", the forward pass, of each query and of each other way."""
    plain = taken[""]
    for way in list(taken)[1:]:
        what = way if way in QUERIES else f"class by {way}"
        words = f"ViT-S/14 at {side} px, attention of {what}: memory / its fused forward"
        note = f"{statistics.median(taken[way]):.0f} MiB / {statistics.median(plain):.0f} MiB"
        ratios = [one / max(of, 1.0) for one, of in zip(taken[way], plain, strict=True)]
        yield from_rounds(words, ratios, QUERIES.get(way, ""), note)


def _of_measures(pixels: int, took: float, rounds: int) -> Iterator[Ratio]:
    """All measures of attention together, on one image."""
    model, batch = _model(pixels), _batch(pixels)

    def unfused() -> None:
        with torch.no_grad(), family_of(model).materialised(model):
            model(batch.images)

    what = f"ViT-S/14 at {pixels} px, all measures of attention, batch 1"
    measured = functools.partial(_measured, model, batch)
    yield compare(f"{what}: time / its unfused forward", measured, unfused, rounds, "<= 6")
    yield single(f"{what}: memory beyond the network (MiB)", took, "<= 400")


def _of_a_batch(pixels: int, images: int, rows: float, matrices: float) -> Iterator[Ratio]:
    """All measures of attention on one batch: by rows, over the same by matrices of all blocks.

    Both ways take the batch apart: by matrices eight images at a time, by rows as few as keep the
    record small.
    """
    model, batch = _model(pixels), _batch(pixels, images)
    what = f"ViT-S/14 at {pixels} px, all measures of attention, batch {images}: rows / matrices"
    by_rows = functools.partial(_measured, model, batch)
    by_matrices = functools.partial(_measured, model, batch, beside=MATRIX)
    yield compare(f"{what}, time", by_rows, by_matrices, 3)
    note = f"{rows:.0f} MiB / {matrices:.0f} MiB"
    yield single(f"{what}, memory", rows / max(matrices, 1.0), "", note)


def _of_a_large_network(pixels: int, took: dict[str, float]) -> Iterator[Ratio]:
    """Six measures of one image: of all the process, and until the first of them has its numbers."""
    what = f"ViT-L/14 at {pixels} px, one image"
    yield single(f"{what}, {', '.join(SIX)}: peak memory (GiB)", took["memory"], "<= 4")
    yield single(f"{what}: seconds until {SIX[0]} is known", took["seconds"], "<= 60")


def _otherwise(model: nn.Module, image: torch.Tensor, way: str) -> list[torch.Tensor]:
    """Per block the class token's row (1, H, N)."""
    if way == NNSIGHT:
        return _by_nnsight(model, image)
    found: list[torch.Tensor] = []

    def row(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        found.append(_class_row(output, module.heads))

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


def _class_row(queries_keys_values: torch.Tensor, heads: int) -> torch.Tensor:
    query, key, _ = queries_keys_values.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    scores = query[:, :, :1] @ key.mT * query.shape[-1] ** -0.5
    return scores.softmax(-1)[:, :, 0]


def _by_nnsight(model: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    import nnsight

    network = nnsight.NNsight(model)
    with torch.no_grad(), network.trace(image):
        found: list[torch.Tensor] = nnsight.save([])
        for block in network.blocks:
            found.append(_class_row(block.attn.qkv.output, block.attn.num_heads))
    return found


def _measured(
    model: nn.Module,
    batch: Batch,
    names: Collection[str] = MEASURES,
    beside: Collection[str] = (),
) -> None:
    """Show a batch to measures of attention. beside: further needs; "attn" is of matrices."""
    layout = mhprobe.attach(model).layout
    every = {name: build(name, layout) for name in names}
    of_attention = {name: measure for name, measure in every.items() if measure.by_rows}
    passes = Passes(beside=frozenset(beside))  # type: ignore[arg-type]
    recorded = read_as(model, of_attention.values(), beside=passes.beside)
    assert ("rows" in recorded) != ("attn" in passes.beside), "both ways would be the same"
    with warnings.catch_warnings(action="ignore"):  # of so few images
        refused = feed(model, of_attention, lambda: [batch], passes=passes)
    assert not refused, refused


def _batch(pixels: int, images: int = 1) -> Batch:
    objects = torch.zeros(images, pixels, pixels, dtype=torch.long)
    objects[:, : pixels // 2, : pixels // 2] = 1
    labels = torch.arange(images) % 4
    return Batch.whole(torch.randn(images, 3, pixels, pixels), labels, objects)


def in_fork(pixels: int, query: str, images: int = 1) -> Any:
    """MiB beyond the model and the images; of LARGE, with so many blocks in place of images, the peak and seconds.

    query: "" for the forward pass, MEASURED or BY_MATRICES for all measures of attention.
    """
    if query == LARGE:
        return _large(pixels, depth=images)
    model, batch = _model(pixels), _batch(pixels, images)
    image = batch.images[:1]
    before = peak()
    if query == MEASURED:
        _measured(model, batch)
    elif query == BY_MATRICES:
        _measured(model, batch, beside=MATRIX)
    elif query in (HOOKS, NNSIGHT, MATRICES):
        _otherwise(model, image, query)
    elif query:
        mhprobe.attention(model, image, query=query)
    else:
        with torch.no_grad():
            model(image)
    return (peak() - before) / 1024


def _large(pixels: int, depth: int) -> dict[str, float]:
    torch.manual_seed(0)
    options = {"img_size": pixels, "num_classes": 4, "depth": depth}
    model = timm.create_model("vit_large_patch14_dinov2", **options).eval()
    batch = _batch(pixels)
    began = time.perf_counter()
    _measured(model, batch, SIX[:1])
    seconds = time.perf_counter() - began
    _measured(model, batch, SIX)
    return {"seconds": seconds, "memory": peak() / 2**20}


def _model(pixels: int) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_dinov2", img_size=pixels, num_classes=4).eval()
    mhprobe.attach(model)
    return model
