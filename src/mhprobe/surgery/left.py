"""What masks leave of a model's FLOPs and time, as functions that a curve's target can ask (masking/constraints.py).

Shapes: A heads, M masks, B images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from mhprobe.heads import HeadLayout
from mhprobe.surgery.cost import count_flops, head_flops
from mhprobe.surgery.latency import head_latency


def head_shares(model: nn.Module, layout: HeadLayout, images: Tensor, units: Collection[str]) -> dict[str, Tensor]:
    """(A,) float64 for each of ``units`` ("flops", "latency"): the share of the dense forward pass a head costs.

    images: (B, 3, height, width), as many as the time is asked for.
    """
    shares = {}
    if "flops" in units:
        shares["flops"] = head_flops(model, layout).double() / count_flops(model, images[:1])
    if "latency" in units:
        shares["latency"] = head_latency(model, layout, images)
    return shares


def costs(shares: dict[str, Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
    """From shares of heads, functions from (M, A) masks, True = off, to (M,) what is left of the whole."""
    return {unit: functools.partial(_left, share) for unit, share in shares.items()}


def _left(share_A: Tensor, masks: Tensor) -> Tensor:
    return 1 - masks.to(torch.float64) @ share_A
