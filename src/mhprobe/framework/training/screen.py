"""Training as the screen shows it: epoch, batches, rate, time left, the best epoch so far."""

import logging
import time
from contextlib import ExitStack
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from mhprobe.io.progress import announce_stage, progress, show_best
from mhprobe.io.written import counted

log = logging.getLogger(__name__)


class ShowsTraining(ProgressBar):
    """Lightning's events, told to ``io.progress``.

    One bar for the whole training, one for a validation or a test.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = True
        self._bars = ExitStack()
        self._best: tuple[float, int] | None = None
        self._began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._best = state_dict["best"]

    def disable(self) -> None:
        self.shown = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epochs = trainer.max_epochs or 0
        if self.shown:
            announce_stage(f"training {counted(epochs, 'epoch')}")
        total = int(self.total_train_batches) * epochs
        self._training = self._bars.enter_context(
            progress("training", total, "batches", self.shown)
        )
        self._training(0, done=trainer.current_epoch * int(self.total_train_batches))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.monotonic()
        self._training(0, f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._training(1)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluate("validating", trainer.num_val_batches)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.shown:
            announce_stage("testing")
        self._evaluate("testing", trainer.num_test_batches)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._evaluation(1)
        self._left -= 1
        if self._left <= 0:  # what others do at the end of the epoch has bars of its own
            self._evaluated.close()

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluated.close()
        if self.shown and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._say(
                trainer, {name: float(value) for name, value in trainer.callback_metrics.items()}
            )

    on_test_end = on_validation_end  # which says nothing after a test

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._bars.close()

    on_exception = on_train_end

    def _evaluate(self, what: str, batches: list[int | float]) -> None:
        self._evaluated, self._left = ExitStack(), int(sum(batches))
        self._evaluation = self._evaluated.enter_context(
            progress(what, self._left, "batches", self.shown)
        )

    def _say(self, trainer: L.Trainer, numbers: dict[str, float]) -> None:
        epoch = trainer.current_epoch + 1
        accuracy = numbers.get("val/accuracy")
        loss = numbers.get("val/loss")
        if accuracy is None or loss is None:
            return
        if self._best is None or accuracy > self._best[0]:
            self._best = accuracy, epoch
        show_best(f"{100 * self._best[0]:.1f} % on validation, epoch {self._best[1]}")
        text = "epoch %d of %s: validation accuracy %.2f %%, loss %.4f, best epoch %d, %.1f s"
        log.info(
            text,
            epoch,
            trainer.max_epochs,
            100 * accuracy,
            loss,
            self._best[1],
            time.monotonic() - self._began,
        )
