"""GateHistory: how gates moved while they were learned."""

from typing import Any

import lightning as L
import torch

from mhprobe.gates import gates_of
from mhprobe.report import tables
from mhprobe.report.figures import gates
from mhprobe.report.report import Report, Result, Sample

ROWS = 200  # of the history: enough for a figure, and a checkpoint hardly grows


class GateHistory(L.Callback):
    """Writes gate_history (table and figure) after training.

    keep, threshold: the binary decision, as in ``HeadGates.kept``.
    """

    def __init__(self, report: Report, keep: int | None = None, threshold: float | str = 0.5) -> None:
        self.report = report
        self.keep, self.threshold = keep, threshold
        self.steps: list[int] = []
        self.amounts: list[list[float]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "amounts": self.amounts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.amounts = list(state_dict["steps"]), list(state_dict["amounts"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gates_of(pl_module).kept(self.keep, self.threshold)  # a number that cannot be kept is said now, not at the end
        self._note(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        total: int = pl_module.total_steps  # type: ignore[assignment]
        if trainer.global_step % max(1, total // ROWS) == 0 or trainer.global_step == total:
            self._note(trainer, pl_module)

    def _note(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self.steps or trainer.global_step > self.steps[-1]:  # accumulating batches take no step
            self.steps.append(trainer.global_step)
            self.amounts.append(gates_of(module).amount().detach().tolist())

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Not on_train_end: that is not for a run that goes on from its very last step."""
        if not trainer.is_global_zero:
            return
        layout = gates_of(pl_module).layout
        names = [f"{site.name}.{head}" for _, head, site in layout]
        rows = [[step, sum(amounts), *amounts] for step, amounts in zip(self.steps, self.amounts, strict=True)]
        table = tables.Table(["step", "open", *names], rows, "gate_history")
        figure = gates.gate_history(
            layout, self.steps, torch.tensor(self.amounts), gates_of(pl_module).threshold(self.threshold)
        )
        self.report.add(
            "gate_history",
            Result(table, figure, label="how open the learned gate is", of=Sample(), drawn="gate_history"),
        )
