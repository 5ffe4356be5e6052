"""Causal roles of heads: gates fitted on training images, and what the classes of heads are worth on test images."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mhprobe.gates import gates_of
from mhprobe.io.progress import progress
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures.gates import causal
from mhprobe.report.result import Result
from mhprobe.scoring.parts.tally import tally
from mhprobe.studies.causal_gates import ROLES, causal_gates


def causal_roles(material: Material, **options: Any) -> dict[str, Result]:
    """Table and figure causal, and metrics.

    causal: head, site, stage, block, index, role (its name), and the columns of ``causal_gates``.
    Metrics: causal/<role>, the number of heads; causal/accuracy_necessary, the test accuracy with the necessary heads
    alone; causal/accuracy_not_interfering, with all but the interfering ones.

    options: of ``causal_gates``. Each fit is kept: a run that was killed goes on behind the last.
    """
    model, data, gates = material.model, material.data, gates_of(material.model)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(data.sizes["train"], generator=torch.Generator().manual_seed(material.seed + epoch))
        for images in order.split(data.eval_batch_size):  # a step sees the same images however many ranks share them
            for batch in data.batches("train", model.device, images=images):
                yield batch.images[batch.valid], batch.labels[batch.valid]

    def keep(fit: str, find: Callable[[], Tensor]) -> Tensor:
        about = {"causal": fit, "seed": material.seed, "batch": data.eval_batch_size, **options}
        return material.kept(about, lambda: {"logits": find()})["logits"]

    steps = options["start_steps"] + 2 * options["steps"]
    with progress("fitting gates", steps, "steps", material.first) as done:
        columns = causal_gates(model, batches, **options, step=lambda: done(1), keep=keep)
    role = columns["role"]
    chosen = {"necessary": role == 0, "not_interfering": role != ROLES.index("interfering")}
    metrics: dict[str, float] = {f"causal/{name}": int((role == i).sum()) for i, name in enumerate(ROLES)}
    for name, on in chosen.items():
        with gates.masked(~on):
            found = tally(model, material.walk()(), data.sizes["test"])
        metrics[f"causal/accuracy_{name}"] = float(found["accuracy"])
    on_cpu = {name: values.cpu() for name, values in columns.items()}
    table = tables.per_head(gates.layout, on_cpu)
    place = table.columns.index("role")
    rows = [[*row[:place], ROLES[row[place]], *row[place + 1 :]] for row in table.rows]
    drawn = {**on_cpu, "threshold": torch.tensor(options["threshold"])}
    figure = causal(gates.layout, drawn, "role", {"role": ROLES})
    return {"causal": Result(table._replace(rows=rows), figure, metrics, label="role of the head", drawn="causal")}
