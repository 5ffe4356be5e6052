"""Fine-tuning a ViT-S/14 at 112 px in bfloat16: what gates cost a step, where its time goes, what saves some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import mhprobe
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, single
from mhprobe.backbones.parts.freezing import freeze


def run(size: Size) -> Iterator[Ratio]:
    batch, rounds = size.pick(2, 32), size.rounds(15)
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, 112, 112), torch.randint(0, 10, (batch,))
    options = size.pick({"depth": 2, "embed_dim": 48, "num_heads": 3}, {})
    bare = timm.create_model(
        "vit_small_patch14_dinov2", img_size=112, num_classes=10, **options
    ).train()
    gated = copy.deepcopy(bare)
    mhprobe.attach(gated)
    halved = copy.deepcopy(bare)
    halved.patch_drop = timm.layers.PatchDropout(0.5)
    shallow = copy.deepcopy(bare)
    freeze(shallow, size.pick(1, 4))

    plain = copy.deepcopy(bare)
    for block in plain.blocks:
        block.attn.fused_attn = False

    def step_of(model: nn.Module) -> Callable[[], None]:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, 1e-4)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(images)
            cross_entropy(logits.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    whole = step_of(bare)
    yield compare(
        "fine-tuning step of a ViT-S/14, bfloat16: bare timm loop / with gates",
        whole,
        step_of(gated),
        rounds,
        ">= 0.97",
    )
    yield compare(
        "  the same: all patches / half of the patches left out", whole, step_of(halved), rounds
    )
    yield compare("  the same: fused attention / plain", whole, step_of(plain), rounds)
    yield compare(
        "  the same: nothing frozen / embedding and the first blocks, a third of them",
        whole,
        step_of(shallow),
        rounds,
    )
    compiled = torch.compile(
        copy.deepcopy(gated), backend=size.pick("eager", "inductor")
    )  # kernels take a minute
    yield compare(
        "  the same, with gates: as it is / by torch.compile",
        step_of(gated),
        step_of(compiled),
        rounds,
    )
    yield from _shares(step_of(gated))


def _shares(step: Callable[[], None]) -> Iterator[Ratio]:
    """Where the time of a step goes, by torch's profiler."""
    step()  # the optimizer makes its state in the first
    with profile(activities=[ProfilerActivity.CPU]) as record:
        step()
    events = record.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    products = [event for event in events if event.key in ("aten::mm", "aten::addmm", "aten::bmm")]
    attention = [event for event in events if event.key.startswith("aten::_scaled_dot_product")]
    for what, time in (
        ("products of matrices", sum(event.self_cpu_time_total for event in products)),
        ("attention, forward and backward", sum(event.self_cpu_time_total for event in attention)),
        (
            "AdamW",
            sum(event.cpu_time_total for event in events if event.key.startswith("Optimizer.step")),
        ),
    ):
        yield single(f"  share of that step's time: {what}", time / whole)
