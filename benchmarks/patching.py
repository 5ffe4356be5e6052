"""Activation patching of every head: shared blocks against a whole run per head, and slopes against both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import mhprobe
from benchmarks.harness.models import small_swin, small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single
from mhprobe.heads import Patching
from mhprobe.recording.patching import PatchedPass, patched
from mhprobe.recording.record import Counter
from mhprobe.recording.replay import Replay
from mhprobe.recording.state import inspecting
from mhprobe.recording.taps import Taps


def run(size: Size) -> Iterator[Ratio]:
    models = {"ViT": small_vit(size.pick(2, 6)), "Swin": small_swin(size.pick((1, 1), (2, 2, 4)))}
    for name, model in models.items():
        yield from _of(name, model.eval(), size)


def _of(name: str, model: nn.Module, size: Size) -> Iterator[Ratio]:
    layout = mhprobe.attach(model).layout
    count = size.pick(2, 16)
    images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 10
    with inspecting(model, gradients=False), Taps(model, layout, ()) as taps:
        clean = PatchedPass(images, taps.heads, model(images))
    masks, twins, heads = (
        torch.eye(layout.num_heads, dtype=torch.bool),
        images.roll(1, 0),
        tuple(taps.heads),
    )

    def shared() -> Tensor:
        return Replay(model, masks, instead=heads)(twins)

    if not torch.allclose(by_hooks(model, twins, heads), shared(), rtol=1e-3, atol=1e-4):
        raise RuntimeError("the logits differ")
    with Counter() as ours:
        shared()
    with Counter() as whole:
        by_hooks(model, twins, heads)
    ratio = ours.total / whole.total
    what = f"{name}: every head patched, shared blocks / one whole run per head"
    yield single(f"{what}, operations", ratio, "<= .55")
    yield compare(
        f"{what}, time", shared, lambda: by_hooks(model, twins, heads), size.rounds(5), "<= .55"
    )
    for estimates, aim in ((("atp",), ">= 10"), (("atp", "graddrop"), "")):
        yield compare(
            f"{name}: patching exactly / {' and '.join(estimates)}",
            lambda: patched(model, clean, labels, None, Patching(estimates=("exact",))),
            lambda estimates=estimates: patched(
                model, clean, labels, None, Patching(estimates=estimates)
            ),
            size.rounds(5),
            aim,
        )


def by_hooks(model: nn.Module, images: Tensor, heads: tuple[Tensor, ...]) -> Tensor:
    """(A, B, C) logits, a whole run per head."""
    logits = []
    for site, theirs in zip(mhprobe.attach(model).layout.sites, heads, strict=True):
        proj = model.get_submodule(site.name).proj
        for head in range(site.num_heads):
            part = slice(head * site.head_dim, (head + 1) * site.head_dim)

            def swap(
                _module: nn.Module,
                args: tuple[Tensor, ...],
                part: slice = part,
                theirs: Tensor = theirs,
            ) -> Tensor:
                z = args[0].clone()
                z[..., part] = theirs[..., part]
                return z

            handle = proj.register_forward_pre_hook(swap)
            with torch.no_grad():
                logits.append(model(images))
            handle.remove()
    return torch.stack(logits)
