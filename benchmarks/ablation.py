"""Masking every head alone (AblationDelta, the first step of a search): shared blocks against whole forward passes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mhprobe
from benchmarks.gates import small_vit
from benchmarks.timing import Ratio, compare
from mhprobe.recording.replay import masked_logits

BATCH = 16


def run() -> list[Ratio]:
    model = small_vit().eval()
    layout = mhprobe.attach(model).layout
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    masks = torch.eye(layout.num_heads, dtype=torch.bool)
    whole, shared = whole_model(model, images, masks), masked_logits(model, images, masks)
    if not torch.equal(whole.argmax(-1), shared.argmax(-1)):
        raise RuntimeError("ablation: the predictions differ")
    ratio = flops(lambda: whole_model(model, images, masks)) / flops(lambda: masked_logits(model, images, masks))
    return [
        Ratio("all heads alone: FLOPs through the whole model / with shared blocks", ratio, ratio, ratio, 1, ">= 1.8"),
        compare(
            "all heads alone: time through the whole model / with shared blocks",
            lambda: whole_model(model, images, masks),
            lambda: masked_logits(model, images, masks),
            rounds=5,
            limit=">= 1.6",
        ),
    ]


def whole_model(model: nn.Module, images: Tensor, masks: Tensor) -> Tensor:
    """(M, B, C) logits by switching the gates and running the model, mask by mask."""
    gates, logits = mhprobe.attach(model), []
    with torch.inference_mode():
        for mask in masks:
            with gates.masked(mask):
                logits.append(model(images))
    return torch.stack(logits)


def flops(work) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()
