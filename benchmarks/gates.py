"""What gates cost when they do nothing, and what importance costs against the usual ways to get it."""

from __future__ import annotations

import copy

import timm
import torch
from torch.nn.functional import cross_entropy

import mhprobe
from benchmarks.timing import Ratio, compare
from mhprobe.measures import GateImportance

BATCH = 64


def small_vit() -> torch.nn.Module:
    """The network of cifar10_vit_scratch."""
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=4,
        embed_dim=192,
        depth=6,
        num_heads=12,
        mlp_ratio=2,
        num_classes=10,
    )


def run() -> list[Ratio]:
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    bare = small_vit()
    gated = copy.deepcopy(bare)
    gates = mhprobe.attach(gated)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    optimizers = {model: torch.optim.AdamW(model.parameters(), 1e-4) for model in (bare, gated)}
    training = compare(
        "training step: gates at one / bare timm model",
        lambda: step(gated, optimizers[gated]),
        lambda: step(bare, optimizers[bare]),
        rounds=41,
        limit="<= 1.02",
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

    return [
        training,
        compare("GateImportance, per image, all heads / forward", one_pass, forward, rounds=21, limit="<= 2.4"),
        compare("  beside it: full backward, batch sum only / forward", full_backward, forward, rounds=11),
        compare("  beside it: per image at batch size 1 / forward", one_by_one, forward, rounds=5),
    ]
