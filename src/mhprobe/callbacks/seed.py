"""SeedEachStep: dropout and stochastic depth as a function of (seed, epoch, step, rank), never of the past.

A resumed run then draws what the uninterrupted one would have drawn, at every step, with nothing to store.
"""

import hashlib
from typing import Any

import lightning as L

from mhprobe.data.draws import reseed


class SeedEachStep(L.Callback):
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        key = f"{self.seed}/{trainer.current_epoch}/{batch_idx}/{trainer.global_rank}"
        reseed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]), pl_module.device)
