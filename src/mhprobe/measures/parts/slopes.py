"""The slope of each image's loss along each head's gate: what importance and Fisher information are made of.

dL/dxi_h = sum over tokens and width of z * dL/dz; a windowed site's windows belong to one image and are summed.

Shapes: B images, T tokens, H heads of one site, D head width, A heads of all sites.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch, wide


def gate_slopes(batch: HeadBatch, name: str) -> Tensor:
    """(B, A) float64, once per batch for all measures. name: of the measure that asks, for its error."""
    batch.need("grad", name)
    return batch.derive(_gate_slopes)


def _gate_slopes(batch: HeadBatch) -> Tensor:
    return torch.cat([t.sum(1) for t in token_slopes(batch, "gate slopes")], 1)


def token_slopes(batch: HeadBatch, name: str) -> list[Tensor]:
    """Per site (B, T, H) float64: the slope along a gate on this token's head alone."""
    # products of narrow types are exact in float32, their sums are not
    pairs = zip(batch.z, batch.need("grad", name), strict=True)
    return [(wide(z) * wide(g)).sum(-1, dtype=torch.float64) for z, g in pairs]
