"""The loss around the weights, along two directions.

Li, Xu, Taylor, Studer & Goldstein, 2018, arXiv 1712.09913: random directions whose every filter (here: every row of a
weight matrix) has the norm of the network's own, so that networks of different scales can be compared; weights of one
dimension (biases, norms) stay where they are. Park & Kim, 2022, arXiv 2202.06709, draw such landscapes of ViTs.

Shapes: S steps along each direction, W weights.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.measures.parts.losses import outcomes
from mhprobe.questions.material import Material
from mhprobe.recording.state import inspecting, usable
from mhprobe.report.figures import training as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows


def landscape(
    material: Material, images: int = 256, steps: int = 11, reach: float = 1.0, directions: int = 2
) -> dict[str, Result]:
    """Mean loss of training images over a grid of steps along two random directions.

    images: one batch. steps: along each, odd, so that the weights themselves are in the middle. reach: how far, in
    norms of the filters. directions: draws of the pair, each a panel. Table: draw, along_a, along_b, loss.
    """
    model, data = material.model, material.data
    batch = data.some("train", images, model.device)
    backbone: nn.Module = model.backbone  # type: ignore[assignment]
    places = torch.linspace(-reach, reach, steps, dtype=torch.float64).tolist()
    pairs = [[direction(backbone, material.seed + 2 * draw + k) for k in (0, 1)] for draw in range(directions)]
    found = [losses(backbone, batch.images, batch.labels, places, along) for along in pairs]
    rows: list[dict[str, Any]] = [
        {"draw": draw, "along_a": a, "along_b": b, "loss": surface[i, j].item()}
        for draw, surface in enumerate(found)
        for i, a in enumerate(places)
        for j, b in enumerate(places)
    ]
    return {"loss": Result(from_rows(rows), figure.landscape(places, found), of=material.of(images, "train"))}


def direction(model: nn.Module, seed: int) -> list[Tensor]:
    """A step for each weight: rows of the norm of the weight's own rows, 0 for weights of one dimension."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for weight in model.parameters():
        drawn = torch.randn(weight.shape, generator=generator).to(weight)
        if weight.dim() < 2:
            found.append(torch.zeros_like(drawn))
            continue
        own, theirs = (each.detach().flatten(1).norm(dim=1) for each in (weight, drawn))
        found.append(drawn * (own / theirs.clamp(min=1e-12)).view(-1, *[1] * (weight.dim() - 1)))
    return found


def losses(
    model: nn.Module, images: Tensor, labels: Tensor, places: Sequence[float], along: Sequence[Sequence[Tensor]]
) -> Tensor:
    """(S, S) float64 mean loss with the weights moved by ``places`` along the first and the second of ``along``.

    The model is left as it was, bit by bit.
    """
    weights = list(model.parameters())
    before = [weight.detach().clone() for weight in weights]
    found: list[float] = []
    with inspecting(model, gradients=False), torch.no_grad():
        images, labels = usable(images), usable(labels)
        try:
            for i, j in itertools.product(range(len(places)), repeat=2):
                for weight, start, a, b in zip(weights, before, *along, strict=True):
                    weight.data.copy_(start + places[i] * a + places[j] * b)
                found.append(outcomes(model(images), labels)[1].mean().item())
        finally:
            for weight, start in zip(weights, before, strict=True):
                weight.data.copy_(start)
    return torch.tensor(found, dtype=torch.float64).view(len(places), -1)
