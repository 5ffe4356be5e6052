"""Slopes of the loss along head gates: one image at a time, autograd on explicit gate scalars."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def value(model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]) -> Tensor:
    """(A,) mean over images of |slope|."""
    return slopes(model, images, labels, sites).abs().mean(0)


def slopes(
    model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]
) -> Tensor:
    """(N, A) d(loss of image n)/d(gate a) at gates of one."""
    gates = [torch.ones(heads, dtype=torch.float64, requires_grad=True) for _, heads in sites]
    return torch.stack(
        [torch.cat(_slope(model, images, labels, n, sites, gates)) for n in range(len(images))]
    )


def token_sizes(
    model: nn.Module, images: Tensor, labels: Tensor, sites: list[tuple[str, int]]
) -> Tensor:
    """(N, A) sum over an image's tokens of |d(loss)/d(a gate on this token's head alone)|."""
    rows = []
    for n in range(len(images)):
        shapes = _row_shapes(model, images[n : n + 1], sites)
        gates = [
            torch.ones(*shape, heads, dtype=torch.float64, requires_grad=True)
            for shape, (_, heads) in zip(shapes, sites, strict=True)
        ]
        rows.append(
            torch.cat([g.abs().sum((0, 1)) for g in _slope(model, images, labels, n, sites, gates)])
        )
    return torch.stack(rows)


def _slope(model, images, labels, n, sites, gates):
    """Gradients of image n's loss with respect to gates that multiply the heads' slices of proj's input."""
    handles = []
    for (name, heads), gate in zip(sites, gates, strict=True):

        def multiply(_module, args, heads=heads, gate=gate):
            return (args[0] * gate.repeat_interleave(args[0].shape[-1] // heads, dim=-1),)

        module = model.get_submodule(name)  # of an MLP the units are its neurons
        enters = module.fc2 if hasattr(module, "fc2") else module.proj
        handles.append(enters.register_forward_pre_hook(multiply))
    loss = nn.functional.cross_entropy(model(images[n : n + 1]), labels[n : n + 1])
    for handle in handles:
        handle.remove()
    return torch.autograd.grad(loss, gates)


def _row_shapes(model, image, sites):
    """(windows, tokens) that enter each projection for one image."""
    shapes = []
    handles = [
        model.get_submodule(name).proj.register_forward_pre_hook(
            lambda _, args: shapes.append(args[0].shape[:2])
        )
        for name, _ in sites
    ]
    with torch.no_grad():
        model(image)
    for handle in handles:
        handle.remove()
    return shapes
