"""A run that goes on is the same run: its checkpoints say which they are of, and each step draws as it would have."""

import hashlib
from collections.abc import Mapping
from typing import Any

import lightning as L

from mhprobe.data.draws import reseed


class SameRun(L.Callback):
    """Refuse a checkpoint of another run. A setting that was changed before the run goes on takes effect.

    facts: of this run besides its trainer, plain values by key (mhprobe.run.resume).
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts, self.changed = dict(facts), False

    def facts(self, trainer: L.Trainer) -> dict[str, Any]:
        return {**self._facts, "processes": trainer.world_size, "precision": str(trainer.precision)}

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["run"] = self.facts(trainer)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.changed = checkpoint.get("run") != self.facts(trainer)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.changed:  # the checkpoint's optimizer came back with its own rates
            set_rates(trainer, pl_module)


def set_rates(trainer: L.Trainer, pl_module: L.LightningModule) -> None:
    """Give the restored optimizer the settings of this run; its moments and its step count stay."""
    fresh: Any = pl_module.configure_optimizers()
    for live, new in zip(trainer.optimizers[0].param_groups, fresh["optimizer"].param_groups, strict=True):
        live.update({key: value for key, value in new.items() if key != "params"})
    schedule: Any = trainer.lr_scheduler_configs[0].scheduler
    schedule.base_lrs = [group["initial_lr"] for group in trainer.optimizers[0].param_groups]
    for group, base, factor in zip(
        trainer.optimizers[0].param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)


class SeedEachStep(L.Callback):
    """Dropout and stochastic depth as a function of (seed, epoch, step, rank), never of the past.

    A resumed run then draws what the uninterrupted one would have drawn, at every step, with nothing to store.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        key = f"{self.seed}/{trainer.current_epoch}/{batch_idx}/{trainer.global_rank}"
        reseed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]), pl_module.device)
