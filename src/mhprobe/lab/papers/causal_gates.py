"""Causal head gating: gates fitted twice on a frozen model, pulled open and shut; roles of heads.

Nam, Conklin, Yang, Griffiths, Cohen & Leslie, 2025, arXiv 2505.13737. After a fit of gates to the
loss alone, two fits
go on: with a price on every open head (+L1), and with a reward for it (-L1).

    necessary     open at a price (paper: facilitating)
    irrelevant    open only for a reward
    interfering   closed in spite of a reward

Fitted gates multiply the factors that heads have from before; a head with factor 0 is "closed",
without scores.

As in the paper the gates' logits are trained, and the penalty is weight * sum of logits, clipped to
[-4, 4], which drives gates to 0 or 1. A head resists where its slope is above about 4 weight. The
paper starts at random gates and its code averages the penalty over heads; here all gates begin
open, as the model was trained, and weight is per head.

Shapes: A heads of all sites.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError, whole_number
from mhprobe.framework.questions.material import Material
from mhprobe.gates.base import gates_of
from mhprobe.io.progress import progress
from mhprobe.recording.outputs import gate_slope
from mhprobe.recording.state import inspecting
from mhprobe.report import tables
from mhprobe.report.figures.gates import causal
from mhprobe.report.result import Result
from mhprobe.scoring.parts.tally import tally

BEGIN, CLIP = 2.0, 4.0  # logits: gates of 0.88 and 0.98
LEAST = {"batch_size": 1, "steps": 1, "start_steps": 0}
ROLES = ("necessary", "irrelevant", "interfering", "unsettled", "closed")


@dataclass(frozen=True)
class Fit:
    """Options of the fits. UserError for options out of their range.

    weight: nats per unit of a head's logit. steps: of each of the two fits; start_steps: of the
    first one. lr: Adam's, on logits, falling linearly to 0. threshold: open gates are above it.
    """

    weight: float = 0.002
    steps: int = 200
    start_steps: int = 50
    lr: float = 0.2
    threshold: float = 0.5

    def __post_init__(self) -> None:
        refuse_options(**dataclasses.asdict(self))


def causal_roles(material: Material, batch_size: int = 500, **options: Any) -> dict[str, Result]:
    """Find roles of heads.

    A killed run goes on after the last fit. UserError for options too small.

    batch_size: training images of a step, on all ranks together. options: of ``Fit``.

    Table causal: head, site, stage, block, index, role (its name), and the columns of
    ``causal_gates``. Metrics: causal/<role>, the number of heads; causal/accuracy_necessary, the
    test accuracy with the necessary heads alone; causal/accuracy_not_interfering, with all but the
    interfering ones.
    """
    refuse_options(batch_size=batch_size)
    model, data, gates = material.model, material.data, gates_of(material.model)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(
            data.sizes["train"], generator=torch.Generator().manual_seed(material.seed + epoch)
        )
        for images in order.split(
            batch_size
        ):  # the same images however many ranks and batches of data share them
            parts = [
                (b.images[b.valid], b.labels[b.valid])
                for b in data.batches("train", model.device, images=images)
            ]
            yield torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def keep(fit: str, find: Callable[[], Tensor]) -> Tensor:
        about = {"causal": fit, "seed": material.seed, "batch": batch_size, **options}
        return material.kept(about, lambda: {"logits": find()})["logits"]

    steps = options["start_steps"] + 2 * options["steps"]
    with progress("fitting gates", steps, "steps", material.first) as done:
        columns = causal_gates(
            model,
            batches,
            Fit(**options),
            at_once=data.eval_batch_size,
            step=lambda: done(1),
            keep=keep,
        )
    role = columns["role"]
    chosen = {"necessary": role == 0, "not_interfering": role != ROLES.index("interfering")}
    metrics: dict[str, float] = {
        f"causal/{name}": int((role == i).sum()) for i, name in enumerate(ROLES)
    }
    for name, on in chosen.items():
        with gates.masked(~on):
            result = tally(model, material.walk()(), data.sizes["test"])
        metrics[f"causal/accuracy_{name}"] = float(result["accuracy"])
    on_cpu = {name: values.cpu() for name, values in columns.items()}
    table = tables.per_head(gates.layout, on_cpu)
    place = table.columns.index("role")
    rows = [[*row[:place], ROLES[row[place]], *row[place + 1 :]] for row in table.rows]
    plotted = {**on_cpu, "threshold": torch.tensor(options["threshold"])}
    figure, about = (
        causal(gates.layout, plotted, "role", {"role": ROLES}),
        ("role", "nothing: roles have no order"),
    )
    return {
        "causal": Result(table._replace(rows=rows), figure, metrics, drawn="causal").saying(*about)
    }


def refuse_options(**options: float) -> None:
    """Raise UserError for an option of ``causal_roles`` or ``causal_gates`` out of its range."""
    for name, value in options.items():
        if name in LEAST:
            whole_number(name, value, LEAST[name])
        elif not 0 < value < (1 if name == "threshold" else math.inf):
            below = " and below 1" if name == "threshold" else ""
            raise UserError(f"{name}: expected a number above 0{below}, got {value}.")


def causal_gates(
    model: nn.Module,
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    options: Fit = Fit(),
    at_once: int | None = None,
    step: Callable[[], None] = lambda: None,
    keep: Callable[[str, Callable[[], Tensor]], Tensor] = lambda fit, find: find(),
) -> dict[str, Tensor]:
    """Fit the gates of a frozen model three times; model and gates stay as they are.

    batches: starts epoch 0, 1, ... of shuffled (images, labels). Each process gets its share of
    every batch, which may be none, and all get the gates of one process. at_once: images of one
    forward pass; None: all of a step. step: called with each step. keep: called with the name of a
    fit and a function that finds its logits (A,), which it may have from before.

    Columns, each (A,): role, an index into ROLES (unsettled: open at a price but closed for a
    reward; closed: factor 0, and NaN in the other columns); plus and minus, the gates under +L1 and
    -L1; start, those of the first fit; and the paper's scores facilitation = plus, irrelevance =
    minus (1 - plus), interference = 1 - minus.
    """
    gates = gates_of(model)
    factors = gates.effective()
    stream = _endless(batches)

    def slope(gate: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        step()
        parts = zip(
            *(part.split(at_once or max(1, len(images))) for part in (images, labels)), strict=True
        )
        return factors * gate_slope(model, gates, factors * gate, parts).to(gate)

    def fit(name: str, begin: Tensor, price: float, count: int) -> Tensor:
        part = itertools.islice(stream, count)
        logits = keep(name, lambda: _fit(begin, part, slope, price, options.lr, count))
        for _ in part:  # skip the images of a fit that was kept
            step()
        return logits.to(begin)

    with inspecting(model, gradients=True), gates.fixed(factors):
        begin = fit("start", torch.full_like(gates.values, BEGIN), 0.0, options.start_steps)
        plus = fit("plus", begin, options.weight, options.steps)
        minus = fit("minus", begin, -options.weight, options.steps)
        start, plus, minus = (logits.sigmoid() for logits in (begin, plus, minus))
    role = roles_by_gates(plus, minus, options.threshold).masked_fill(
        factors == 0, ROLES.index("closed")
    )
    plus, minus, start = (
        gate.masked_fill(factors == 0, torch.nan) for gate in (plus, minus, start)
    )
    scores = {"facilitation": plus, "irrelevance": minus * (1 - plus), "interference": 1 - minus}
    return {"role": role, "plus": plus, "minus": minus, "start": start, **scores}


def roles_by_gates(plus: Tensor, minus: Tensor, threshold: float = 0.5) -> Tensor:
    """(A,) int64, index into ROLES, from the gates under +L1 and under -L1."""
    needed, tolerated = plus > threshold, minus > threshold
    role = torch.full(plus.shape, ROLES.index("irrelevant"), device=plus.device)
    role[needed & tolerated] = ROLES.index("necessary")
    role[~needed & ~tolerated] = ROLES.index("interfering")
    role[needed & ~tolerated] = ROLES.index("unsettled")
    return role


def _fit(
    begin: Tensor,
    batches: Iterable[Any],
    slope: Callable[..., Tensor],
    price: float,
    lr: float,
    count: int,
) -> Tensor:
    """(A,) logits after ``count`` steps from ``begin``.

    slope: of the loss along gates (A,), from images and labels.
    """
    logits = begin.detach().clone()
    optimizer = torch.optim.Adam([logits], lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / max(1, count))
    for images, labels in batches:
        gate = logits.sigmoid()
        logits.grad = slope(gate, images, labels) * gate * (1 - gate) + price * (
            logits.abs() < CLIP
        )
        optimizer.step()
        schedule.step()
        if not logits.isfinite().all():
            raise UserError(
                "causal: the gates became NaN. Check the weights and the normalisation of the "
                "images."
            )
    return logits


def _endless(batches: Callable[[int], Iterable[Any]]) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        pairs = iter(batches(epoch))
        if (first := next(pairs, None)) is None:
            raise UserError("causal: there are no images to fit gates on.")
        yield first
        yield from pairs
