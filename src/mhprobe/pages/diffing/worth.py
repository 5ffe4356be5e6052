"""Worth of heads to each of two compared networks: importance and, if asked for, ablation.

Shapes: A heads of the first network, N images.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.api import measure
from mhprobe.differences.compare import Batches, Measured
from mhprobe.differences.errors import Pairs
from mhprobe.differences.sides import Side, Torch
from mhprobe.errors import UserError
from mhprobe.measures import AblationDelta, GateImportance

SIZE = 4  # images at a time
ABLATED = {"": "value", "_low": "low", "_high": "high"}  # endings of columns, and of the measure's


def importance(
    a: Torch, b: Side, pairs: Pairs, batches: Batches, labels: Tensor | None
) -> dict[str, Tensor]:
    """Return (A,) importance of each head in both networks, by its slope; nothing without slopes.

    labels: (N,) of the photographs, if they have some.
    """
    if not isinstance(b, Torch):
        return {}
    try:
        found = [
            measure(side.model, _images(side, at, batches, labels), [GateImportance])
            for at, side in enumerate((a, b))
        ]
    except UserError:  # quantised layers, a network that drops its graph: no slope arrives
        return {}
    return of_both("importance", [one["gate_importance"] for one in found], a, b, pairs)


def refuse_no_ablation(asked: bool, b: Side, classes: bool) -> None:
    """Raise UserError where ablation is asked for and cannot be measured.

    classes: whether the networks give logits.
    """
    if asked and not isinstance(b, Torch):
        raise UserError(
            f"diff: ablation: {b.name} is an export, whose heads cannot be masked. Give two networks "
            "of torch, or leave ablation out."
        )
    if asked and not classes:
        raise UserError(
            "diff: ablation: the networks have no classifier, so there is no loss that could rise. "
            "Give networks with one, or leave ablation out."
        )


def ablation(
    a: Torch, b: Side, pairs: Pairs, batches: Batches, found: Measured, progress: bool
) -> dict[str, Tensor]:
    """Return (A,) rise of the loss without each head in both networks, in nats, and its interval.

    Larger: the network needs the head more. The loss is of the photographs' labels; without labels
    of the classes that A gives. Each network is run once for each head.
    """
    assert isinstance(b, Torch), "else refuse_no_ablation had raised"
    labels = found.labels if found.labels is not None else found.ours.argmax(1)
    both = [
        measure(side.model, _images(side, at, batches, labels), [AblationDelta], progress)
        for at, side in enumerate((a, b))
    ]
    columns: dict[str, Tensor] = {}
    for ending, name in ABLATED.items():
        values = [one["ablation_delta"].columns[name] for one in both]
        told = of_both("ablation", values, a, b, pairs)
        columns |= {f"{key}{ending}": value for key, value in told.items()}
    return columns


def _images(side: Torch, at: int, batches: Batches, labels: Tensor | None) -> Sequence[Any]:
    """Return the images of a side a few at a time, with labels if there are some."""
    return at_once(images_of(side, at, batches), labels)


def images_of(side: Torch, at: int, batches: Batches) -> Tensor:
    """(N, C, height, width) images of a side. at: 0 for A's, 1 for B's."""
    weight = next(iter(side.model.parameters()))
    return torch.cat([batch.theirs if at else batch.ours for batch in batches(SIZE)]).to(weight)


def at_once(images: Tensor, labels: Tensor | None) -> Sequence[Any]:
    """Return (N, C, height, width) images a few at a time, with labels if there are some."""
    parts = images.split(SIZE)
    return parts if labels is None else list(zip(parts, labels.split(SIZE), strict=True))


def of_both(
    name: str, values: Sequence[Tensor], a: Torch, b: Torch, pairs: Pairs
) -> dict[str, Tensor]:
    """Return (A,) ``_before``, the first network's values, and ``_after``, the second's at the heads it still has."""
    before = values[0].detach().double()[: a.layout.of("head").num_heads]
    return {f"{name}_before": before, f"{name}_after": of_other(values[1], a, b, pairs)}


def of_other(value: Tensor, a: Torch, b: Torch, pairs: Pairs) -> Tensor:
    """(A,) values of B's heads at the heads of A; NaN for those that B has not."""
    heads, others = a.layout.of("head"), b.layout.of("head")
    found = torch.full((heads.num_heads,), torch.nan, dtype=torch.float64)
    theirs = others.split(value.detach().double()[: others.num_heads])
    numbers = heads.split(torch.arange(heads.num_heads))
    for pair, mine in zip(pairs.heads, numbers, strict=True):
        if pair.other is not None:
            found[mine[pair.mine]] = theirs[pair.other][pair.theirs]
    return found
