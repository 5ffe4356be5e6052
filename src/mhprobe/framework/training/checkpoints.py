"""Checkpoints that are whole or absent, hold plain data, and outlive a SIGTERM; a run that goes on is the same run."""

import hashlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from mhprobe.data.draws import reseed
from mhprobe.errors import UserError, causes
from mhprobe.io.files import reason, write
from mhprobe.io.stopping import handle, stop
from mhprobe.report.report import Report
from mhprobe.weights.checkpoint import load_checkpoint, save_checkpoint

log = logging.getLogger(__name__)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write under a temporary name, sync, rename; read with checksums verified and code refused."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        try:
            save_checkpoint(checkpoint, Path(path))
        except (
            RuntimeError
        ) as error:  # torch's writer puts its own complaint in front of the disk's
            disk = next((cause for cause in causes(error) if isinstance(cause, OSError)), None)
            why = " ".join(str(error).split()) if disk is None else reason(disk, Path(path))
            raise UserError(
                f"checkpoint: could not write {path} ({why}). The one before it is untouched; free "
                "some room and go on "
                f"with ckpt_path=last."
            ) from error

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(path)


def best_and_last(folder: Path, every_n_steps: int | None) -> list[L.Callback]:
    """``best.ckpt`` by validation accuracy; ``last.ckpt`` after every epoch, and every n steps where asked."""
    common: dict[str, Any] = {
        "dirpath": folder,
        "auto_insert_metric_name": False,
        "enable_version_counter": False,
    }
    best = Best(filename="best", monitor="val/accuracy", mode="max", save_top_k=1, **common)
    last = ModelCheckpoint(filename="last", save_on_train_epoch_end=True, **common)
    within = (
        [WithinEpoch(filename="last", every_n_train_steps=every_n_steps, **common)]
        if every_n_steps
        else []
    )
    return [best, last, *within]


class WithinEpoch(ModelCheckpoint):
    """Leaves an epoch's last step to the checkpoint after its validation: Lightning would resume behind both."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if not trainer.is_last_batch:
            super().on_train_batch_end(trainer, *args, **kwargs)


class EveryEpoch(Checkpoint):  # which Lightning calls after all that count the epoch
    """Callback that keeps the checkpoint of every epoch, ``checkpoints/epoch_<number>.ckpt``, numbered from 0."""

    def __init__(self, report: Report) -> None:
        self.folder = report.folder / "checkpoints"

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"epoch_{trainer.current_epoch}.ckpt")


class Best(ModelCheckpoint):
    """Brings the best epoch along when a run goes on in another folder.

    UserError for a run that never validates.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        every = trainer.check_val_every_n_epoch or 1
        if (steps := cast(Any, pl_module).total_steps) < per_epoch * every:
            raise UserError(
                f"trainer: the training ends after {steps} steps and the first validation comes "
                "after "
                f"{per_epoch * every} ({every} epochs of {per_epoch}), so no weights would be "
                "chosen. Raise the "
                "trainer's max_epochs or max_steps, or validate more often (its "
                "check_val_every_n_epoch)."
            )

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = checkpoint["callbacks"].pop(self.state_key)
        ours = Path(str(self.dirpath)) / "best.ckpt"
        score = state["best_model_score"]
        # the run's folder may have been moved, and a later epoch may have taken the file
        places = Path(str(trainer.ckpt_path)).with_name("best.ckpt"), Path(state["best_model_path"])
        for theirs in filter(Path.is_file, places):
            if (
                load_checkpoint(theirs)
                .get("callbacks", {})
                .get(self.state_key, state)["best_model_score"]
                == score
            ):
                if theirs != ours and trainer.is_global_zero:
                    write(ours, theirs.read_bytes())
                paths = {
                    "dirpath": self.dirpath,
                    "best_model_path": str(ours),
                    "kth_best_model_path": str(ours),
                }
                return self.load_state_dict({**state, **paths, "best_k_models": {str(ours): score}})
        if score is not None and trainer.is_global_zero:
            log.warning(
                "no best.ckpt with the best accuracy so far (%.4f): chosen are epochs from here on",
                score,
            )


class SaveOnTerminate(L.Callback):
    """On SIGTERM or Ctrl-C finish the step, save ``last.ckpt`` on all ranks together, and stop.

    The handler only sets a flag: saving inside it deadlocks while a peer is in its backward pass.
    After an epoch's last step its validation and own checkpoint come first. A second signal does
    not wait.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "last.ckpt"
        self.signal = 0  # its number, 0 before any

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def handler(number: int, _frame: FrameType | None) -> None:
            if self.signal:
                stop(number)
            self.signal = number

        handle(handler)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if not trainer.is_last_batch and (number := self._told_to_any_rank(trainer)):
            trainer.save_checkpoint(self.path)
            stop(number)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if number := self._told_to_any_rank(
            trainer
        ):  # during the last step or the validation of the epoch before
            stop(number)

    on_train_end = on_train_epoch_start

    def _told_to_any_rank(self, trainer: L.Trainer) -> int:
        if trainer.world_size == 1:
            return self.signal
        number = torch.tensor(float(self.signal), device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(number, reduce_op="max"))


class StopAtOnce(L.Callback):
    """On SIGTERM or Ctrl-C end a test, which has nothing to save; Lightning's own handler would go on."""

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        handle(stop)


class SameRun(L.Callback):
    """Makes settings that changed before a run goes on take effect.

    facts: of this run, by key (mhprobe.framework.run.resume).
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts, self.changed = dict(facts), False

    def facts(self, trainer: L.Trainer) -> dict[str, Any]:
        now = {"processes": trainer.world_size, "precision": str(trainer.precision)}
        stops = [
            ("early_stopping.patience", part.patience) for part in trainer.early_stopping_callbacks
        ]
        return {**self._facts, **now, **dict(stops)}

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["run"] = self.facts(trainer)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.changed = checkpoint.get("run") != self.facts(trainer)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.changed:
            return
        # the checkpoint's optimizer came back with its own rates: it gets this run's; moments and
        # step count stay
        fresh: Any = pl_module.configure_optimizers()
        groups, schedule = (
            trainer.optimizers[0].param_groups,
            cast(Any, trainer.lr_scheduler_configs[0].scheduler),
        )
        for live, new, factor in zip(
            groups, fresh["optimizer"].param_groups, schedule.lr_lambdas, strict=True
        ):
            live.update({key: value for key, value in new.items() if key != "params"})
            live["lr"] = live["initial_lr"] * factor(schedule.last_epoch)
        schedule.base_lrs = [group["initial_lr"] for group in groups]


class SeedEachStep(L.Callback):
    """Dropout and stochastic depth as a function of (seed, epoch, step, rank): a resumed run draws the same."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, _: Any, batch_idx: int
    ) -> None:
        key = f"{self.seed}/{trainer.current_epoch}/{batch_idx}/{trainer.global_rank}"
        reseed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]), pl_module.device)
