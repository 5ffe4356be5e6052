"""A training whose validation accuracy rises no more ends before its last epoch."""

import logging
from typing import Any

import lightning as L
from lightning.pytorch import callbacks

from mhprobe.errors import UserError
from mhprobe.report.report import Report

log = logging.getLogger(__name__)


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's, on validation accuracy; the weights that are tested are those of the best epoch as ever.

    patience: validations in a row without a new best accuracy after which the training ends. The learning rate is still
        planned for all epochs.

    UserError for a patience below 1, and where open heads have a price: accuracy is meant to fall there.
    """

    def __init__(self, report: Report, patience: int = 6) -> None:
        if patience < 1:
            raise UserError(f"patience: expected a number of validations from 1 on, got {patience}.")
        super().__init__("val/accuracy", mode="max", patience=patience)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if getattr(pl_module, "penalty", None) is not None:
            raise UserError(
                "early_stopping: with a price on open heads, the gates' penalty, accuracy is to fall; leave one out."
            )
        trainer.should_stop = self.wait_count >= self.patience  # a run that goes on may have ended already

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            log.info(
                "validation accuracy has not risen for %d validations: the training ends after epoch %d of %s",
                *(self.wait_count, trainer.current_epoch, trainer.max_epochs),
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})  # as it is asked for now

    @staticmethod
    def _log_info(*_: Any) -> None:
        """Lightning would say it with the metric's name and a score."""
