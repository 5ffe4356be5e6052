"""What gates cost when they do nothing, and what importance costs against the usual ways to get it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

import mhprobe
from benchmarks.harness.models import small_vit
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare
from mhprobe.measures import GateImportance


def run(size: Size) -> Iterator[Ratio]:
    batch = size.pick(4, 64)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    bare = small_vit()
    gated = copy.deepcopy(bare)
    gates = mhprobe.attach(gated)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    mhprobe.attach(both := copy.deepcopy(bare), units={"head", "neuron"})
    optimizers = {
        model: torch.optim.AdamW(model.parameters(), 1e-4) for model in (bare, gated, both)
    }
    yield compare(
        "training step: gates at one / bare timm model",
        lambda: step(gated, optimizers[gated]),
        lambda: step(bare, optimizers[bare]),
        rounds=size.rounds(41),
        limit="<= 1.02",
    )
    yield compare(
        "training step: gates on heads and neurons at one / bare timm model",
        lambda: step(both, optimizers[both]),
        lambda: step(bare, optimizers[bare]),
        rounds=size.rounds(41),
        limit="<= 1.03",
    )

    bare.eval(), gated.eval()
    measure = GateImportance(gates.layout)

    @torch.no_grad()
    def forward() -> None:
        bare(images)

    def one_pass() -> None:
        measure.update(mhprobe.record(gated, images, labels))

    def full_backward() -> None:
        """As most scripts do it: every weight gets a gradient too, and only the batch's sum comes out."""
        gates.values.requires_grad_(True)
        cross_entropy(gated(images), labels, reduction="sum").backward()
        gates.values.requires_grad_(False)

    def one_by_one() -> None:
        """Exact per image the usual way: batch size 1."""
        for image, label in zip(images, labels, strict=True):
            mhprobe.record(gated, image[None], label[None])

    rounds = size.rounds(11)
    yield compare(
        "GateImportance, per image, all heads / forward",
        one_pass,
        forward,
        size.rounds(21),
        "<= 2.4",
    )
    yield compare(
        "  beside it: full backward, batch sum only / forward", full_backward, forward, rounds
    )
    yield compare(
        "  beside it: per image at batch size 1 / forward", one_by_one, forward, size.rounds(5)
    )
