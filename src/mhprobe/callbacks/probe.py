"""Probe: shows measures what the heads do, on the test images, and along training on the validation images.

Beside the model's own test images there may be a control (the same network, freshly initialised, through the same
pipeline) and a second data set; what several results say together is in report/comparisons.py.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning as L
from torch import Tensor, nn

from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, Patching
from mhprobe.io.progress import progress, stage
from mhprobe.measures.base import Measure
from mhprobe.recording.cost import forward_equivalents
from mhprobe.recording.measuring import Columns, label_of, measure, needs_of
from mhprobe.recording.objective import Of
from mhprobe.report.comparisons import Point, agreement_of, history, two_data_sets
from mhprobe.report.measured import of_measure
from mhprobe.report.report import Report, Sample, counted

log = logging.getLogger(__name__)

Results = dict[str, Columns]  # by measure


class Probe(L.Callback):
    """One recorded forward (and backward, if a measure needs slopes) per batch, shared by all measures.

    Runs outside the precision plugin's autocast, so measures see full precision. A measure that has to choose
    something is shown the validation images first.

    every_n_epochs, every_n_steps: also probe the validation images so often during training, and before it.
    control: gives a freshly initialised twin of the model, with gates, once the model is what is tested.
    also_on: a second data set with the same classes, prepared.
    target: what slopes are taken of, as for ``record``; None for the loss, of features their norm.
    top_k: how many of each measure's best heads are compared with every other's; None leaves agreement out.
    refused: what could not be computed; other measures are not held up by it.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        report: Report,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        control: Callable[[], nn.Module] | None = None,
        also_on: ImageData | None = None,
        top_k: int | None = 10,
        target: Of | None = None,
    ) -> None:
        self.measures = dict(measures)
        self.report = report
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.control, self.also_on, self.top_k, self.target = control, also_on, top_k, target
        self.refused: list[UserError] = []
        self.history: dict[str, list[Point]] = {}
        self.last_step = -1
        self.used: Of = "loss"  # what slopes were last taken of

    # the test

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        if trainer.is_global_zero:
            count = len(self.measures)
            stage(f"probing: {count} measure{'s' * (count != 1)} on {data.sizes['test']:,} test images")
            with contextlib.suppress(UserError):  # what cannot be recorded is said by who measures, on every rank
                self._say_cost(pl_module, data)
        found = self._look(trainer, pl_module, data, "test", "")
        control: Results = {}
        again: Results = {}
        if self.control is not None:
            twin = self.control()
            control = self._try_to_look(trainer, twin, data, "random initialisation, ")
        if self.also_on is not None:
            self.also_on.trainer = trainer  # it shards by rank
            again = self._try_to_look(trainer, pl_module, self.also_on, f"{self.also_on.source.name}, ")
        if not trainer.is_global_zero:
            return
        for name, columns in found.items():
            self._write(name, columns, control=control.get(name))
        values = self._per_head(found)
        if self.top_k is not None:
            self.report.add("agreement", agreement_of(values, self._per_head(control), self.top_k))
        if self.also_on is not None:
            second = self.also_on.source.name
            of = Sample(self.also_on.sizes["test"], "test", f"measured on {second}")
            for name, columns in again.items():
                self._write(name, columns, f"_{second}", of=of)
            first = data.source.name
            compared = two_data_sets(self.report.layout, first, second, values, self._per_head(again))
            self.report.add(f"{second}_against_{first}", compared)

    def _say_cost(self, module: L.LightningModule, data: ImageData) -> None:
        batch, of = next(self._walk(module, data, "test")), self._of(module)
        needs = needs_of(self.measures.values())
        passes = {need for need in needs if not isinstance(need, Ablation | Patching)}
        shared = forward_equivalents(module, batch, passes, of)
        self.report.add_metrics({"probe/forward_equivalents": shared})
        line = f"the {len(self.measures)} measures need what {shared:.1f} forward passes cost per image"
        if passes != needs:
            masked = forward_equivalents(module, batch, needs, of) - shared
            self.report.add_metrics({"probe/forward_equivalents_ablation": masked})
            line += f", and {masked:.1f} more with heads masked or patched"
        log.debug("%s", line)

    # during training

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (self.every_n_epochs or self.every_n_steps) and trainer.global_step == 0:
            self._point(trainer, pl_module, "_start", "before the first step")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        # with accumulated gradients several batches end in the same step
        if self.every_n_steps and step % self.every_n_steps == 0 and step > self.last_step:
            self._point(trainer, pl_module, f"_step_{step:06d}", f"step {step}")

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        due = self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if due and not trainer.sanity_checking and trainer.state.fn == "fit" and trainer.global_step > self.last_step:
            epoch = trainer.current_epoch
            self._point(trainer, pl_module, f"_epoch_{epoch:03d}", f"epoch {epoch}")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Not on_train_end: that is not for a run that goes on from its very last step."""
        if trainer.is_global_zero:
            for name in self.history:
                self._write_history(trainer, name, drawn=True)

    def _point(self, trainer: L.Trainer, module: L.LightningModule, suffix: str, during: str) -> None:
        """A head's history gets a point; what is no value per head gets a table and figure of its own."""
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        self.last_step = trainer.global_step
        for name, columns in self._look(trainer, module, data, "val", "").items():
            if self.measures[name].kind == "per_head":
                point = Point(trainer.current_epoch, trainer.global_step, columns["value"].tolist())
                self.history.setdefault(name, []).append(point)
                if trainer.is_global_zero:  # rewritten each time: what a run that dies has seen is there
                    self._write_history(trainer, name, drawn=False)
            elif trainer.is_global_zero:
                self._write(name, columns, suffix, during, of=counted(data.sizes["val"], "validation"))

    def state_dict(self) -> dict[str, Any]:
        history = {name: [list(point) for point in points] for name, points in self.history.items()}
        return {"history": history, "last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        known = {name: points for name, points in state_dict["history"].items() if name in self.measures}
        self.history = {name: [Point(*point) for point in points] for name, points in known.items()}
        self.last_step = state_dict["last_step"]

    # one walk over a data set

    def _look(self, trainer: L.Trainer, model: nn.Module, data: ImageData, split: str, label: str) -> Results:
        """Every measure's columns on one split, the same on every rank; what it cannot say is kept in ``refused``."""
        chooses = any(each.select_needs is not None for each in self.measures.values())
        total = data.sizes[split] + (data.sizes["val"] if chooses else 0)
        with progress(f"{label}probing on {split}", total, show=trainer.is_global_zero) as done:
            found, refused = measure(
                model,
                self.measures,
                batches=lambda: self._walk(model, data, split),
                select=lambda: self._walk(model, data, "val"),
                class_names=data.class_names,
                done=lambda batch: done(int(batch.valid.sum())),
                of=self._of(model),
            )
        self.refused += refused.values()
        return found

    def _walk(self, model: nn.Module, data: ImageData, split: str) -> Iterator[Batch]:
        """Batches of a split; labels say nothing about features."""
        for batch in data.batches(split, next(model.parameters()).device):
            yield batch.unlabelled if gives_features(model) else batch

    def _of(self, model: nn.Module) -> Of:
        self.used = self.target or ("norm" if gives_features(model) else "loss")
        return self.used

    def _try_to_look(self, trainer: L.Trainer, model: nn.Module, data: ImageData, label: str) -> Results:
        """Like ``_look`` on the test images, but what is wrong here does not lose what was found before."""
        try:
            return self._look(trainer, model, data, "test", label)
        except UserError as error:
            self.refused.append(UserError(f"{label}{error}"))
            return {}

    def _write_history(self, trainer: L.Trainer, name: str, drawn: bool) -> None:
        about, data = self.measures[name], trainer.datamodule  # type: ignore[attr-defined]
        found = history(self.report.layout, about.label, self.history[name], drawn)
        of = counted(data.sizes["val"], "validation")
        self.report.add(f"{name}_history", found._replace(unit=about.unit, larger=about.larger, part_of=name, of=of))

    def _write(
        self,
        name: str,
        columns: Mapping[str, Tensor],
        end: str = "",
        during: str = "",
        control: Mapping[str, Tensor] | None = None,
        of: Sample | None = None,
    ) -> None:
        about = self.measures[name]
        label = label_of(about, self.used)
        results = of_measure(name, about, about.layout, columns, control, label, end, during)
        self.report.add_all({key: each._replace(of=each.of or of) for key, each in results.items()})

    def _per_head(self, results: Results) -> dict[str, Tensor]:
        heads = self.report.layout.of("head").num_heads
        return {n: columns["value"][:heads] for n, columns in results.items() if self.measures[n].kind == "per_head"}
