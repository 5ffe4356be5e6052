"""GateHistory: how gates moved while they were learned, which heads they keep, and what the binary decision costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning as L
import torch

from mhprobe.data.base import ImageData
from mhprobe.gates import gates_of
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.report import tables
from mhprobe.report.figures import gate_density, gate_history
from mhprobe.report.report import Report, Result, Sample
from mhprobe.scoring.tally import tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 200  # of the history: enough for a figure, and a checkpoint hardly grows


class GateHistory(L.Callback):
    """Writes gate_history (table and figure) after training, and after the test the table gates and metrics.

    gates: head, site, stage, block, index, gate (in evaluation), open (P(open), or |gate|), kept (0 or 1),
    shifted (0 or 1) where a model has shifted windows. Of hard-concrete gates also the figure gate_density.
    Metrics: gates/kept, gates/expected_open; test accuracy and loss once more with gates of exactly 0 and 1.

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
        figure = gate_history.draw(
            layout, self.steps, torch.tensor(self.amounts), gates_of(pl_module).threshold(self.threshold)
        )
        self.report.add(
            "gate_history",
            Result(table, figure, label="how open the learned gate is", of=Sample(), drawn="gate_history"),
        )

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gates = gates_of(pl_module)
        kept = gates.kept(self.keep, self.threshold)
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        with gates.fixed(kept.float()):
            binary = tally(pl_module, data.batches("test", pl_module.device), data.sizes["test"])
        if not trainer.is_global_zero:
            return
        columns = {"gate": gates.effective(), "open": gates.amount().detach(), "kept": kept.long()}
        metrics = {
            "gates/heads": gates.layout.num_heads,
            "gates/kept": int(kept.sum()),
            "gates/expected_open": float(columns["open"].sum()),
            "gates/open_not_zero": int((columns["gate"] != 0).sum()),
            "gates/binary_accuracy": float(binary["accuracy"]),
            "gates/binary_loss": float(binary["loss"]),
        }
        shifted = [site.windows is not None and any(site.windows.shift) for _, _, site in gates.layout]
        if any(shifted):
            columns["shifted"] = torch.tensor(shifted).long()
        table = tables.per_head(gates.layout, {name: values.cpu() for name, values in columns.items()})
        self.report.add("gates", Result(table, metrics=metrics, label="learned gate", decides="closed", of=Sample()))
        if isinstance(gates, HardConcreteGates):
            self.report.add("gate_density", Result(figure=_density(gates), of=Sample(), drawn="gate_density"))


def _density(gates: HardConcreteGates) -> Figure:
    drawn = gates.distribution.binned(gates.log_alpha.detach(), gate_density.BINS)
    return gate_density.draw({}, (gates.effective().cpu(), drawn.mean(0)))
