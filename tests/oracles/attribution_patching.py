"""The slope along every head's way from the corrupted to the clean run, by finite differences: no autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles.activation_patching import difference, outputs, partners, with_head

STEP = 1e-3
STENCIL = {
    1: 3 / 4,
    2: -3 / 20,
    3: 1 / 60,
}  # sixth order: what is left over is STEP^6 times a seventh derivative


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean slope over mean (clean - corrupted)."""
    other = partners(images, labels)
    wrong, twin = labels[other], images[other]
    way = (
        (difference(model(images), labels, wrong) - difference(model(twin), labels, wrong))
        .mean()
        .detach()
    )
    seen, found = outputs(model, images, sites), []
    for name, heads in sites:
        for head in range(heads):
            slope = 0.0
            for steps, weight in STENCIL.items():
                for sign in (1, -1):
                    logits = with_head(
                        model, twin, name, heads, head, seen[name], sign * steps * STEP
                    )
                    slope += sign * weight * difference(logits, labels, wrong).mean() / STEP
            found.append(slope / way)
    return torch.stack(found)
