"""CausalRoles: fits gates on the training images and says what the classes of heads are worth on the test images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.base import ImageData
from mhprobe.gates import gates_of
from mhprobe.io.progress import progress
from mhprobe.report import tables
from mhprobe.report.figures import causal
from mhprobe.report.report import Report, Result
from mhprobe.scoring.tally import tally
from mhprobe.studies.causal_gates import ROLES, causal_gates


class CausalRoles(L.Callback):
    """At the end of the test: table and figure causal, and metrics.

    causal: head, site, stage, block, index, role (its name), and the columns of ``causal_gates``.
    Metrics: causal/<role>, the number of heads; causal/accuracy_necessary, the test accuracy with the necessary heads
    alone; causal/accuracy_not_interfering, with all but the interfering ones.

    seed: of the order of the images. options: of ``causal_gates``.
    """

    def __init__(self, report: Report, seed: int = 0, **options: Any) -> None:
        self.report, self.seed, self.options = report, seed, options

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        gates = gates_of(pl_module)

        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            order = torch.randperm(data.sizes["train"], generator=torch.Generator().manual_seed(self.seed + epoch))
            for images in order.split(
                data.eval_batch_size
            ):  # a step sees the same images however many ranks share them
                for batch in data.batches("train", pl_module.device, images=images):
                    yield batch.images[batch.valid], batch.labels[batch.valid]

        steps = self.options["start_steps"] + 2 * self.options["steps"]
        with progress("fitting gates", steps, "steps", trainer.is_global_zero) as done:
            columns = ranks.together(lambda: causal_gates(pl_module, batches, **self.options, step=lambda: done(1)))
        role = columns["role"]
        chosen = {"necessary": role == 0, "not_interfering": role != ROLES.index("interfering")}
        metrics: dict[str, float] = {f"causal/{name}": int((role == i).sum()) for i, name in enumerate(ROLES)}
        for name, on in chosen.items():
            with gates.masked(~on):
                found = tally(pl_module, data.batches("test", pl_module.device), data.sizes["test"])
            metrics[f"causal/accuracy_{name}"] = float(found["accuracy"])
        if not trainer.is_global_zero:
            return
        on_cpu = {name: values.cpu() for name, values in columns.items()}
        table = tables.per_head(gates.layout, on_cpu)
        place = table.columns.index("role")
        rows = [[*row[:place], ROLES[row[place]], *row[place + 1 :]] for row in table.rows]
        drawn = {**on_cpu, "threshold": torch.tensor(self.options["threshold"])}
        figure = causal.draw(gates.layout, drawn, "role", {"role": ROLES})
        self.report.add(
            "causal", Result(table._replace(rows=rows), figure, metrics, label="role of the head", drawn="causal")
        )
