"""Direct logit attribution: what a batch recorded and measured takes, beside its forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import timm
import torch
from torch import Tensor, nn

import mhprobe
from benchmarks.harness.models import small_swin, small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare
from mhprobe.backbones import input_spec
from mhprobe.measures.logit_attribution import LogitAttribution

AIM = "<= 1.2"


def run(size: Size) -> Iterator[Ratio]:
    names = size.pick((), ("deit_small_patch16_224", "swin_tiny_patch4_window7_224"))
    models = [
        ("small ViT", small_vit(size.pick(2, 6))),
        ("small Swin", small_swin(size.pick((1, 1), (2, 2, 4)))),
        *((n, timm.create_model(n)) for n in names),
    ]
    for name, model in models:
        images = torch.randn(
            size.pick(2, 8 if name in names else 32), 3, *input_spec(model)["size"]
        )
        yield _of(name, model.eval(), images, size)


def _of(name: str, model: nn.Module, images: Tensor, size: Size) -> Ratio:
    measure, labels = LogitAttribution(mhprobe.attach(model).layout), torch.arange(len(images)) % 10

    def look() -> None:
        measure.update(mhprobe.record(model, images, labels, needs=measure.needs))

    @torch.no_grad()
    def forward() -> None:
        model(images)

    return compare(
        f"{name}: a batch of logit attribution / its forward pass",
        look,
        forward,
        size.rounds(5),
        AIM,
    )
