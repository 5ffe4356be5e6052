"""Ends of a training before its last epoch: at the first NaN or infinity, or where accuracy rises no more."""

import contextlib
import functools
import logging
import math
from typing import Any

import lightning as L
import torch
from lightning.pytorch import callbacks
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.report.report import Report

log = logging.getLogger(__name__)


class StopAtNonFinite(L.Callback):
    """UserError when the loss or a gradient is nan or infinite, checked once a step, before the weights change.

    The checkpoints before it are good.
    """

    batch: Any = None
    loss: Any = None  # the sum over what the step accumulates: not finite if one of them is not

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, *_: Any
    ) -> None:
        self.batch = batch

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:
        loss, self.loss = self.loss, None
        named = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        fine = loss.isfinite()
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            # a scaler skips steps of infinite gradients itself; the sum of squares overflows before
            # its parts do
            largest = torch.nn.utils.get_total_norm(
                [g for g in named.values() if g.numel()], norm_type=math.inf
            )
            fine = fine & largest.isfinite()
        if fine:
            return
        if loss.isfinite():
            what = "a gradient is not finite"
            where = next(name for name, grad in named.items() if not grad.isfinite().all())
        else:
            what = f"the loss became {loss.item()}"
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                where = first_non_finite(pl_module, self.batch.images)
        raise UserError(
            f"{what} at epoch {trainer.current_epoch}, step {trainer.global_step}, first in "
            f"{where}; training stopped "
            "before this step changed the weights. Lower the optimiser's lr or set the trainer's "
            "gradient_clip_val, "
            "and go on from the last checkpoint with ckpt_path=last, what you changed listed in "
            "allow of resume."
        )


def first_non_finite(model: nn.Module, images: Tensor) -> str:
    """The first weight that is not finite, else the first module whose output on ``images`` is not."""
    if bad := [name for name, weight in model.named_parameters() if not weight.isfinite().all()]:
        return bad[0]
    names: list[str] = []

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            names.append(name)

    with (
        contextlib.ExitStack() as hooks,
        torch.compiler.set_stance("force_eager"),
    ):  # compiled code sees no new hooks
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(functools.partial(look, name)))
        model(images)
    return names[0] if names else "the loss itself"


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's, on validation accuracy. The learning rate is still planned for all epochs.

    patience: validations in a row without a new best accuracy after which the training ends.
    UserError for a patience below 1, and where open heads have a price: accuracy is meant to fall
    there.
    """

    def __init__(self, report: Report, patience: int = 6) -> None:
        if patience < 1:
            raise UserError(
                f"patience: expected a number of validations from 1 on, got {patience}."
            )
        super().__init__("val/accuracy", mode="max", patience=patience)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if getattr(pl_module, "penalty", None) is not None:
            raise UserError(
                "early_stopping: the gates' penalty closes heads, so accuracy falls; leave one out."
            )
        trainer.should_stop = (
            self.wait_count >= self.patience
        )  # a run that goes on may have ended already

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            text = "validation accuracy has not risen for %d validations: the training ends after epoch %d of %s"
            log.info(text, self.wait_count, trainer.current_epoch, trainer.max_epochs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})  # as it is asked for now
