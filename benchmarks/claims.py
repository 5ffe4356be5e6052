"""What all claims cost beside the recorded pass that they share: in operations, counted, since no claim computes much.

The masks that a claim evaluates are counted with numbers in the place of a network, one test image
at a time; masks of heads of late blocks cost less than a forward pass, which is not counted in
their favour.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import mhprobe
from benchmarks.harness.measures import MEASURES, build
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.lab.claims.parts.claim import all_claims
from mhprobe.lab.claims.parts.evidence import Columns, Evidence
from mhprobe.recording.measuring import needs_of
from mhprobe.recording.record import forward_equivalents


class Counting(Evidence):
    """Evidence that counts the masks of test images that claims ask for, and answers nothing else."""

    def __init__(self, layout: HeadLayout) -> None:
        self.layout = layout
        self.masks: set[bytes] = set()

    def columns(self, name: str) -> Columns:
        raise UserError("counts masks only.")

    control = second = of_images = run = columns

    def path(self, name: str) -> Tensor:
        heads = self.layout.num_heads
        seeds = range(5) if name == "random" else [len(name)]
        orders = [
            torch.randperm(heads, generator=torch.Generator().manual_seed(seed)) for seed in seeds
        ]
        return torch.stack([torch.arange(heads + 1)[:, None] > order.argsort() for order in orders])

    def chosen(self, masks: Tensor) -> Tensor:
        return torch.rand(5, len(masks), generator=torch.Generator().manual_seed(0))

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        if split == "test":
            self.masks |= {mask.numpy().tobytes() for mask in masks}
        return torch.rand(len(masks), 20, generator=torch.Generator().manual_seed(0)) < 0.5


def run(size: Size) -> Iterator[Ratio]:
    model = small_vit(size.pick(3, 6, 6)).eval()
    layout = mhprobe.attach(model).layout
    names = {name for claim in all_claims().values() for name in claim.measures}
    needs = needs_of(build(name, layout) for name in MEASURES if name in names)
    batch = Batch(
        torch.randn(4, 3, 32, 32), torch.arange(4), torch.arange(4), torch.ones(4, dtype=torch.bool)
    )
    shared = forward_equivalents(
        model, batch, {need for need in needs if not isinstance(need, Ablation)}
    )
    alone = forward_equivalents(model, batch, needs) - shared
    counting = Counting(layout)
    for claim in all_claims().values():
        try:
            claim.estimate(counting)
        except UserError:
            continue
    masks = len(counting.masks)
    note = f"{len(all_claims())} claims, {masks} masks beside single heads"
    yield single(
        "all claims / their shared pass, operations per test image",
        (shared + alone + masks) / shared,
        "",
        note,
    )
    yield single("  the shared pass / forward", shared)
