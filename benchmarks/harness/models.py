"""Networks that several parts time."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

import mhprobe


def small_vit(depth: int = 6) -> nn.Module:
    """The network of cifar10_vit_scratch, not trained.

    depth: its number of blocks; fewer are for tests.
    """
    torch.manual_seed(0)
    options = {
        "img_size": 32,
        "patch_size": 4,
        "embed_dim": 192,
        "depth": depth,
        "num_heads": 12,
        "mlp_ratio": 2,
    }
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, **options)


def small_swin(depths: tuple[int, ...] = (2, 2, 4)) -> nn.Module:
    """cifar10_swin_stem without the stem, its MLPs twice as wide; not trained.

    depths: blocks of its stages; fewer are for tests.
    """
    torch.manual_seed(0)
    heads = (3, 6, 12)[: len(depths)]
    sizes = {"patch_size": 2, "window_size": 4, "embed_dim": 48, "depths": depths}
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, num_classes=10, num_heads=heads, **sizes
    )


def whole_model(model: nn.Module, images: Tensor, masks: Tensor) -> Tensor:
    """(M, B, C) logits by switching the gates and running the model, mask by mask."""
    gates, logits = mhprobe.attach(model), []
    with torch.inference_mode():
        for mask in masks:
            with gates.masked(mask):
                logits.append(model(images))
    return torch.stack(logits)
