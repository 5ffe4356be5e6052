"""Sharpness of the loss: the largest eigenvalues of its Hessian, over all weights and over those of each block.

After Park & Kim, 2022, arXiv 2202.06709, section 2, who look at the largest eigenvalues; found here one by one by power
iteration with Hessian-vector products. Each vector is orthogonal to those found before. A block's Hessian is the part
of the whole one that belongs to its weights.

Shapes: K eigenvalues.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mhprobe.questions.material import Material
from mhprobe.recording.outputs import objective
from mhprobe.recording.state import inspecting, usable
from mhprobe.report.figures import training as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows


def sharpness(
    material: Material, images: int = 128, top: int = 1, iterations: int = 20, blocks: bool = True
) -> dict[str, Result]:
    """The largest eigenvalues for all weights together and for each block.

    images: training images the loss is taken over, one batch. top: eigenvalues of each part. blocks: each block too.
    Table: part (all, or the block's name), rank, eigenvalue (nats), change (of the last step, relative: large means
    that more iterations are needed), iterations, images.
    """
    model, data, layout = material.model, material.data, material.layout
    # every rank looks at the same few images: there is nothing to share
    batch = data.some("train", images, model.device)
    backbone: nn.Module = model.backbone  # type: ignore[assignment]
    parts = {"all": list(backbone.parameters())}
    if blocks:
        parts |= {block.name: list(backbone.get_submodule(block.name).parameters()) for block in layout.blocks}
    rows: list[dict[str, Any]] = []
    for name, weights in parts.items():
        for rank, (value, change) in enumerate(
            eigenvalues(backbone, batch.images, batch.labels, weights, top, iterations, material.seed), start=1
        ):
            numbers = {"eigenvalue": value, "change": change, "iterations": iterations, "images": len(batch.images)}
            rows.append({"part": name, "rank": rank, **numbers})
    return {"eigenvalues": Result(from_rows(rows), figure.sharpness(rows), of=material.of(images, "train"))}


def eigenvalues(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    weights: Sequence[nn.Parameter],
    top: int = 1,
    iterations: int = 20,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """The ``top`` eigenvalues of largest size of the mean loss's Hessian, each with its last relative change.

    weights: of ``model``, those that the Hessian is taken over. The model is left as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    asked = {id(weight): weight.requires_grad for weight in weights}
    with inspecting(model, gradients=True), sdpa_kernel(SDPBackend.MATH):  # fused kernels have no second derivative
        images, labels = usable(images), usable(labels)
        for weight in weights:
            weight.requires_grad_(True)
        try:
            loss = objective(model(images), labels, "loss").mean()
            slopes = torch.autograd.grad(loss, list(weights), create_graph=True, allow_unused=True)
            known = [(w, s) for w, s in zip(weights, slopes, strict=True) if s is not None]
            used, slope = [w for w, _ in known], torch.cat([s.flatten() for _, s in known])
            found: list[tuple[float, float]] = []
            basis: list[Tensor] = []
            for _ in range(top):
                value, change, vector = _largest(slope, used, basis, iterations, generator)
                found.append((value, change))
                basis.append(vector)
        finally:
            for weight in weights:
                weight.requires_grad_(asked[id(weight)])
    return found


def _largest(
    slope: Tensor, weights: Sequence[Tensor], basis: Sequence[Tensor], iterations: int, generator: torch.Generator
) -> tuple[float, float, Tensor]:
    """One eigenvalue, how much it changed in the last step, and its vector; orthogonal to ``basis``."""
    vector = torch.randn(len(slope), generator=generator).to(slope)
    value = change = 0.0
    for _ in range(iterations):
        for other in basis:
            vector = vector - (vector @ other) * other
        vector = vector / vector.norm()
        product = torch.autograd.grad(slope @ vector, list(weights), retain_graph=True, allow_unused=True)
        parts = zip(weights, product, strict=True)
        image = torch.cat([torch.zeros_like(w).flatten() if p is None else p.flatten() for w, p in parts])
        before, value = value, float(vector @ image)
        change = abs(value - before) / max(abs(value), 1e-12)
        vector = image.detach()
    for other in basis:
        vector = vector - (vector @ other) * other
    return value, change, vector / vector.norm().clamp(min=1e-30)
