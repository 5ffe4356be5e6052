"""Checkpoints that are whole or absent, hold plain data, and outlive a SIGTERM."""

import math
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from mhprobe.errors import UserError
from mhprobe.io.files import reason, write
from mhprobe.io.stopping import handle, stop
from mhprobe.weights.checkpoint import load_checkpoint, save_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write under a temporary name, sync, rename; read with checksums verified and code refused."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        try:
            save_checkpoint(checkpoint, Path(path))
        except RuntimeError as error:  # torch's writer puts its own complaint in front of the disk's
            raise UserError(
                f"checkpoint: could not write {path} ({_of_the_disk(error, Path(path))}). The one before it is "
                f"untouched; free some room and go on with ckpt_path=last."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load_checkpoint(path)


def _of_the_disk(error: BaseException, path: Path) -> str:
    """Return the first message of the operating system, e.g. "No space left on device"."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return reason(cause, path)
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())


def best_and_last(folder: Path, every_n_steps: int | None) -> list[L.Callback]:
    """``best.ckpt`` by validation accuracy; ``last.ckpt`` after every epoch, and every n steps where asked."""
    common: dict[str, Any] = {"dirpath": folder, "auto_insert_metric_name": False, "enable_version_counter": False}
    best = Best(filename="best", monitor="val/accuracy", mode="max", save_top_k=1, **common)
    each_epoch = ModelCheckpoint(filename="last", save_on_train_epoch_end=True, **common)
    if every_n_steps is None:
        return [best, each_epoch]
    return [best, each_epoch, WithinEpoch(filename="last", every_n_train_steps=every_n_steps, **common)]


class WithinEpoch(ModelCheckpoint):
    """Leaves an epoch's last step to the checkpoint after its validation: Lightning would resume behind both."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if not trainer.is_last_batch:
            super().on_train_batch_end(trainer, *args, **kwargs)


class Best(ModelCheckpoint):
    """Brings the best epoch so far along when a run goes on in another folder; Lightning would forget it.

    A run that never validates has no best epoch: that is said before the training, not after it.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        each = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        every = trainer.check_val_every_n_epoch or 1
        steps = each * (trainer.max_epochs or 0)
        steps = steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)
        if steps < each * every:
            raise UserError(
                f"trainer: the training ends after {steps} steps and the first validation comes after {each * every} "
                f"({every} epochs of {each}), so no weights would be chosen. Raise the trainer's "
                f"max_epochs or max_steps, or validate more often (its check_val_every_n_epoch)."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        theirs, ours = Path(state_dict["best_model_path"]), Path(str(self.dirpath)) / "best.ckpt"
        if theirs.is_file():
            if theirs != ours and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
                write(ours, theirs.read_bytes())
            state_dict = {
                **state_dict,
                "dirpath": self.dirpath,
                "best_model_path": str(ours),
                "kth_best_model_path": str(ours),
                "best_k_models": {str(ours): state_dict["best_model_score"]},
            }
        super().load_state_dict(state_dict)


class SaveOnTerminate(L.Callback):
    """On SIGTERM or Ctrl-C finish the step, save ``last.ckpt`` on all ranks together, and stop.

    The handler only sets a flag: saving inside it deadlocks while a peer is in its backward pass. After an epoch's
    last step the validation comes first, and the checkpoint is the epoch's own. A second signal does not wait.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "last.ckpt"
        self.told = 0  # the signal's number

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def handler(number: int, _frame: FrameType | None) -> None:
            if self.told:
                stop(number)
            self.told = number

        handle(handler)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_last_batch and (number := self._told_to_any_rank(trainer)):
            trainer.save_checkpoint(self.path)
            stop(number)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if number := self._told_to_any_rank(trainer):  # during the last step or the validation of the epoch before
            stop(number)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)

    def _told_to_any_rank(self, trainer: L.Trainer) -> int:
        if trainer.world_size == 1:
            return self.told
        number = torch.tensor(float(self.told), device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(number, reduce_op="max"))


class StopAtOnce(L.Callback):
    """On SIGTERM or Ctrl-C end a test: there is nothing to save.

    Lightning's own handler would only take a note, which nobody reads in a test, and wait for the other ranks.
    """

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        handle(stop)
