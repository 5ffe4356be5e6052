"""Loss around the weights: its sharpest directions, and its landscape along random ones.

Both are of a few training images, the same on every rank.

Shapes: S steps along each direction.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from mhprobe.framework.questions.material import Material
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.outputs import objective
from mhprobe.recording.state import inspecting, usable
from mhprobe.report.figures import training as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import Table, from_rows


def sharpness(
    material: Material, images: int = 128, top: int = 1, iterations: int = 20, blocks: bool = True
) -> dict[str, Result]:
    """Find the largest eigenvalues of the loss's Hessian, of all weights and of the weights of each block.

    After Park & Kim, 2022, arXiv 2202.06709, section 2.

    images: of the batch. top: eigenvalues of each part. iterations: of the power iteration. blocks:
    False for all weights alone. Table: part (all, or the block's name), rank, eigenvalue (nats),
    change (relative, of the last step; large means that more iterations are needed), iterations,
    images.
    """
    batch, backbone = material.data.some("train", images, material.model.device), material.backbone
    parts: dict[str, nn.Module] = {"all": backbone}
    parts |= {
        block.name: backbone.get_submodule(block.name) for block in material.layout.blocks if blocks
    }
    rows: list[dict[str, Any]] = []
    for name, part in parts.items():
        of_part = backbone, batch.images, batch.labels, list(part.parameters())
        for rank, (value, change) in enumerate(
            eigenvalues(*of_part, top, iterations, material.seed), start=1
        ):
            numbers = {
                "eigenvalue": value,
                "change": change,
                "iterations": iterations,
                "images": len(batch.images),
            }
            rows.append({"part": name, "rank": rank, **numbers})
    result = Result(from_rows(rows), figure.sharpness(rows), of=material.of(images, "train"))
    return {
        "eigenvalues": result.saying("curvature of the loss (nats)", "the loss is sharper", "nats")
    }


def eigenvalues(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    weights: Sequence[nn.Parameter],
    top: int = 1,
    iterations: int = 20,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """Return the ``top`` eigenvalues of the mean loss's Hessian over ``weights``, each with its last relative change.

    By power iteration, one by one, orthogonally to the earlier ones. The model stays as it is.
    """
    generator = torch.Generator().manual_seed(seed)
    with (
        inspecting(model, gradients=True),
        sdpa_kernel(SDPBackend.MATH),  # fused kernels have no second derivative
        meanwhile(weights, requires_grad=True),
    ):
        images = usable(images)
        labels = usable(labels)
        loss = objective(model(images), labels, "loss").mean()
        slopes = torch.autograd.grad(loss, list(weights), create_graph=True, allow_unused=True)
        used, along = zip(
            *((w, s) for w, s in zip(weights, slopes, strict=True) if s is not None), strict=True
        )
        slope = torch.cat([part.flatten() for part in along])
        values: list[tuple[float, float]] = []
        basis: list[Tensor] = []
        for _ in range(top):
            vector = _orthogonal(torch.randn(len(slope), generator=generator).to(slope), basis)
            value = change = 0.0
            for _ in range(iterations):
                vector = vector / vector.norm().clamp(min=1e-30)
                product = torch.autograd.grad(
                    slope @ vector, used, retain_graph=True, materialize_grads=True
                )
                image = torch.cat([part.flatten() for part in product]).detach()
                before, value = value, float(vector @ image)
                change = abs(value - before) / max(abs(value), 1e-12)
                vector = _orthogonal(image, basis)
            values.append((value, change))
            basis.append(vector / vector.norm().clamp(min=1e-30))
    return values


def _orthogonal(vector: Tensor, basis: Sequence[Tensor]) -> Tensor:
    for other in basis:
        vector = vector - (vector @ other) * other
    return vector


def landscape(
    material: Material, images: int = 256, steps: int = 11, reach: float = 1.0, directions: int = 2
) -> dict[str, Result]:
    """Draw the mean loss over a grid of steps along two random directions.

    Li, Xu, Taylor, Studer & Goldstein, 2018, arXiv 1712.09913: every row of a direction has the
    norm of the weight's row, so that networks of different scales can be compared.

    images: of the batch. steps: along each; odd, for the weights in the middle. reach: the longest
    step, in norms of the rows. directions: draws of the pair, each a panel. Table: draw, along_a,
    along_b, loss.
    """
    batch, backbone = material.data.some("train", images, material.model.device), material.backbone
    places = torch.linspace(-reach, reach, steps, dtype=torch.float64).tolist()
    pairs = [
        [direction(backbone, material.seed + 2 * draw + k) for k in (0, 1)]
        for draw in range(directions)
    ]
    surfaces = [losses(backbone, batch.images, batch.labels, places, along) for along in pairs]
    cells = itertools.product(enumerate(surfaces), enumerate(places), enumerate(places))
    rows = [[draw, a, b, surface[i, j].item()] for (draw, surface), (i, a), (j, b) in cells]
    table = Table(["draw", "along_a", "along_b", "loss"], rows)
    result = Result(table, figure.landscape(places, surfaces), of=material.of(images, "train"))
    return {"loss": result.saying("mean loss (nats)", "the network is worse there", "nats")}


def direction(model: nn.Module, seed: int) -> list[Tensor]:
    """Draw a step for each weight: rows with the norms of the weight's rows, 0 for weights of one dimension."""
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for weight in model.parameters():
        random = torch.randn(weight.shape, generator=generator).to(weight)
        if weight.dim() > 1:
            norms, drawn_norms = (rows.detach().flatten(1).norm(dim=1) for rows in (weight, random))
            random *= (norms / drawn_norms.clamp(min=1e-12)).view(-1, *[1] * (weight.dim() - 1))
        steps.append(random if weight.dim() > 1 else torch.zeros_like(random))
    return steps


def losses(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    places: Sequence[float],
    along: Sequence[Sequence[Tensor]],
) -> Tensor:
    """(S, S) float64 mean loss with the weights moved by ``places`` along the first and the second of ``along``."""
    weights = dict(model.named_parameters())
    means = list[float]()
    with inspecting(model, gradients=False), torch.no_grad():
        images = usable(images)
        labels = usable(labels)
        for a, b in itertools.product(places, repeat=2):
            steps = zip(weights.items(), *along, strict=True)
            moved = {
                name: weight + a * first + b * second for (name, weight), first, second in steps
            }
            means.append(
                outcomes(functional_call(model, moved, (images,)), labels)[1].mean().item()
            )
    return torch.tensor(means, dtype=torch.float64).view(len(places), -1)
