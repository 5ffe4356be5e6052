"""What a model and each of its heads cost: floating-point operations per image, and parameters.

A multiplication with its addition counts as two. Matrix products only: softmax, norms and biases are left out.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mhprobe.heads import HeadLayout


def count_flops(model: nn.Module, image: Tensor) -> int:
    """FLOPs of one image, (1, 3, height, width), in a forward pass."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]  # the counter does not know every fused kernel
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return counter.get_total_flops()


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def head_flops(model: nn.Module, layout: HeadLayout) -> Tensor:
    """(A,) int64, what a forward pass of one image is spared when this head is removed.

    Rows of q, k and v, the products of queries and keys and of weights and values, and the columns of the projection;
    windows are counted with their padding, which is computed too.
    """
    flops = []
    for site in layout.sites:
        windows, tokens = site.places().shape
        projection = model.get_submodule(f"{site.name}.proj")
        dim: int = projection.out_features  # type: ignore[assignment]
        per_token = 3 * dim + 2 * tokens + dim
        flops += [2 * windows * tokens * site.head_dim * per_token] * site.num_heads
    return torch.tensor(flops)
