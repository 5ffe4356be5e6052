"""Repair and Fisher search, slow and obvious: explicit design matrices, autograd on gates, every mask tried."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def factors(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """(H,) the factors of (N, C) head outputs whose sum is nearest to (N, C) ``target``: one long least squares."""
    design = torch.stack([output.flatten() for output in outputs], dim=1)
    return torch.linalg.lstsq(design, target.flatten()[:, None], driver="gelsd").solution[:, 0]


def weights(inputs: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, K), (C,): weight and bias of the linear layer that maps (N, K) inputs nearest to (N, C) targets."""
    design = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
    solution = torch.linalg.lstsq(design, target, driver="gelsd").solution
    return solution[:-1].T, solution[-1]


def fisher(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, sites) -> torch.Tensor:
    """(A, A) by one backward pass per image through gates that are multiplied in here."""
    heads = sum(site.num_heads for site in sites)
    total = torch.zeros(heads, heads, dtype=torch.float64)
    for image, label in zip(images, labels, strict=True):
        gates = [
            torch.ones(site.num_heads, dtype=image.dtype, requires_grad=True) for site in sites
        ]
        handles = []
        for site, gate in zip(sites, gates, strict=True):

            def multiply(_module, args, gate=gate, width=site.head_dim):
                return (args[0] * gate.repeat_interleave(width),)

            handles.append(model.get_submodule(site.name).proj.register_forward_pre_hook(multiply))
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        slope = torch.cat(torch.autograd.grad(loss, gates)).double()
        for handle in handles:
            handle.remove()
        total += torch.outer(slope, slope)
    return total / len(images)


def best_of_layer(block: torch.Tensor, count: int) -> tuple[float, tuple[int, ...]]:
    """The ``count`` heads of a layer whose removal costs least, of all choices: the sum over their block of F."""
    return min(
        (sum(block[i, j].item() for i in chosen for j in chosen), chosen)
        for chosen in itertools.combinations(range(len(block)), count)
    )
