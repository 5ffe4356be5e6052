"""Optimal brain surgery, slow: of every set of units the best change of all other weights, by least squares."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def looked(
    model: nn.Module, layer: nn.Linear, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """(N, K) what enters a linear layer, and (N, C) the slopes of each image's own loss along what leaves it."""
    inputs, slopes = [], []
    for image, label in zip(images, labels, strict=True):
        seen = []
        handle = layer.register_forward_hook(
            lambda _, args, out, seen=seen: seen.extend([args[0], out])
        )
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        (slope,) = torch.autograd.grad(loss, [seen[1]])
        handle.remove()
        inputs.append(seen[0].detach().flatten(0, -2))
        slopes.append(slope.flatten(0, -2))
    return torch.cat(inputs), torch.cat(slopes)


def rise(
    weight: Tensor, inputs: Tensor, slopes: Tensor, images: int, gone: list[int], ridge: float
) -> float:
    """Least tr(D A D^T G) / 2 over changes D of the weights that make the columns ``gone`` zero."""
    centred = inputs - inputs.mean(0)
    a = centred.T @ centred / len(inputs)
    a = a + ridge * a.diagonal().mean() * torch.eye(len(a), dtype=a.dtype)
    g = slopes.T @ slopes / images
    free = [column for column in range(len(a)) if column not in gone]
    change = torch.zeros_like(weight)
    change[:, gone] = -weight[:, gone]
    if free:  # the slope along every free weight is to be 0
        pull = -(g @ change @ a)[:, free]
        unknowns = torch.kron(g, a[free][:, free])
        solved = torch.linalg.lstsq(unknowns, pull.flatten()[:, None], driver="gelsd").solution
        change[:, free] = solved.view(len(g), len(free))
    return float(torch.trace(change @ a @ change.T @ g) / 2)


def in_turn(
    weight: Tensor, inputs: Tensor, slopes: Tensor, images: int, width: int, ridge: float
) -> list[float]:
    """By unit, how much more is lost when it goes as the next cheapest; at least as much as for the one before."""
    units = weight.shape[1] // width
    rises, gone, before, least = [0.0] * units, [], 0.0, 0.0

    def lost(units_gone: list[int]) -> float:
        columns = [unit * width + d for unit in units_gone for d in range(width)]
        return rise(weight, inputs, slopes, images, columns, ridge)

    while len(gone) < units:
        after = {unit: lost([*gone, unit]) for unit in range(units) if unit not in gone}
        unit = min(after, key=after.get)
        least = max(least, after[unit] - before)
        rises[unit], before = least, after[unit]
        gone.append(unit)
    return rises
