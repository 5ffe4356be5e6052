"""Histories of a training: what measures say of the heads, on the validation images, and how gates moved."""

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import nn

from mhprobe.data.base import ImageData
from mhprobe.framework.questions.material import measure_split
from mhprobe.gates import gates_of
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import label_of
from mhprobe.recording.outputs import Of
from mhprobe.report import tables
from mhprobe.report.figures.gates import gate_history
from mhprobe.report.measured import Point, history, of_measure
from mhprobe.report.report import Report
from mhprobe.report.result import Result, Sample

log = logging.getLogger(__name__)

ROWS = 200  # of the history of gates: enough for a figure, and a checkpoint hardly grows


class History(L.Callback):
    """Probes the validation images before training and along it.

    every_n_epochs, every_n_steps: so often. target: what slopes are taken of, as for ``record``;
    None for the loss. A measure that refuses is left out from then on, with a warning.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        report: Report,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        target: Of | None = None,
    ) -> None:
        self.measures, self.report = dict(measures), report
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.target: Of = target or "loss"
        self.points: dict[str, list[Point]] = {}
        self.last_step = -1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == 0:
            self._point(trainer, pl_module, "_start", "before the first step")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        # with accumulated gradients several batches end in the same step
        if self.every_n_steps and step % self.every_n_steps == 0 and step > self.last_step:
            self._point(trainer, pl_module, f"_step_{step:06d}", f"step {step}")

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        due = self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if (
            due
            and not trainer.sanity_checking
            and trainer.state.fn == "fit"
            and trainer.global_step > self.last_step
        ):
            self._point(
                trainer,
                pl_module,
                f"_epoch_{trainer.current_epoch:03d}",
                f"epoch {trainer.current_epoch}",
            )

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Lightning skips on_train_end for a run that goes on from its very last step."""
        if trainer.is_global_zero:
            for name in self.points:
                self._write_history(trainer, name, drawn=True)

    def _point(
        self, trainer: L.Trainer, module: L.LightningModule, suffix: str, during: str
    ) -> None:
        """A head's history gets a point; what is no value per head gets a table and figure of its own."""
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        self.last_step = trainer.global_step
        measured, refused = measure_split(
            module, self.measures, data, "val", of=self.target, show=trainer.is_global_zero
        )
        for name, error in refused.items():
            del self.measures[name]
            if trainer.is_global_zero:
                log.warning("%s along training: left out. %s", name, error)
        for name, columns in measured.items():
            if self.measures[name].kind == "per_head":
                point = Point(trainer.current_epoch, trainer.global_step, columns["value"].tolist())
                self.points.setdefault(name, []).append(point)
                if (
                    trainer.is_global_zero
                ):  # rewritten each time: what a run that dies has seen is there
                    self._write_history(trainer, name, drawn=False)
            elif trainer.is_global_zero:
                about, of = self.measures[name], Sample(data.sizes["val"], "validation")
                label = label_of(about, self.target)
                results = of_measure(name, about, columns, None, label, suffix, during)
                self.report.add(
                    {key: result._replace(of=result.of or of) for key, result in results.items()}
                )

    def state_dict(self) -> dict[str, Any]:
        points = {name: [list(point) for point in points] for name, points in self.points.items()}
        return {"history": points, "last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        kept = {
            name: points for name, points in state_dict["history"].items() if name in self.measures
        }
        self.points = {name: [Point(*point) for point in points] for name, points in kept.items()}
        self.last_step = state_dict["last_step"]

    def _write_history(self, trainer: L.Trainer, name: str, drawn: bool) -> None:
        about, data = self.measures[name], trainer.datamodule  # type: ignore[attr-defined]
        result = history(self.report.layout, about.label, self.points[name], drawn, about.larger)
        of = Sample(data.sizes["val"], "validation")
        self.report.add({f"{name}_history": result._replace(unit=about.unit, part_of=name, of=of)})


class GateHistory(L.Callback):
    """Writes gate_history (table and figure) after training. keep, threshold: as in ``HeadGates.kept``."""

    def __init__(
        self, report: Report, keep: int | None = None, threshold: float | str = 0.5
    ) -> None:
        self.report, self.keep, self.threshold = report, keep, threshold
        self.steps: list[int] = []
        self.amounts: list[list[float]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "amounts": self.amounts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.amounts = list(state_dict["steps"]), list(state_dict["amounts"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gates_of(pl_module).kept(
            self.keep, self.threshold
        )  # a number that cannot be kept is said now, not at the end
        self._note(trainer, pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        total: int = pl_module.total_steps  # type: ignore[assignment]
        if trainer.global_step % max(1, total // ROWS) == 0 or trainer.global_step == total:
            self._note(trainer, pl_module)

    def _note(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if (
            not self.steps or trainer.global_step > self.steps[-1]
        ):  # accumulating batches take no step
            self.steps.append(trainer.global_step)
            gates = gates_of(_averaged(trainer) or module)
            self.amounts.append(gates.amount().detach().tolist())

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write at the end; Lightning skips on_train_end for a run that goes on from its very last step."""
        if not trainer.is_global_zero:
            return
        layout = gates_of(pl_module).layout
        header = ["step", "open", *(f"{site.name}.{head}" for _, head, site in layout)]
        rows = [
            [step, sum(amounts), *amounts]
            for step, amounts in zip(self.steps, self.amounts, strict=True)
        ]
        table = tables.Table(header, rows, "gate_history")
        threshold = gates_of(pl_module).threshold(self.threshold)
        figure = gate_history(layout, self.steps, torch.tensor(self.amounts), threshold)
        drawn = Result(table, figure, of=Sample(), drawn="gate_history")
        self.report.add(
            {"gate_history": drawn.saying("how open the learned gate is", "it is more open")}
        )


def _averaged(trainer: L.Trainer) -> nn.Module | None:
    """Return the running average of the network, where the run keeps one (``optim.ema``)."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    found = (getattr(callback, "_average_model", None) for callback in callbacks)
    average = next((each for each in found if each is not None), None)
    return None if average is None else average.module
