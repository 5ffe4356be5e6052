"""Learning rates for loggers: one curve of the network, and one of learned gates."""

from typing import Any, cast

import lightning as L

from mhprobe.framework.training.classifier import GatedClassifier


class LearningRates(L.Callback):
    """Log ``lr/network`` and, where gates learn, ``lr/gates`` in the steps that loggers record.

    An optimizer has a group of parameters for each layer and each weight decay. Their rates follow
    one schedule, so ``lr/network`` is the highest of them, that of ``optim.lr``.
    """

    recorded = -1  # the last step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any
    ) -> None:
        step = trainer.global_step
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if (step + 1) % every or step == self.recorded:
            return
        self.recorded = step
        rates = rates_of(cast(GatedClassifier, pl_module), trainer.optimizers[0].param_groups)
        for logger in trainer.loggers:
            logger.log_metrics(rates, step=step)


def rates_of(model: GatedClassifier, groups: list[dict[str, Any]]) -> dict[str, float]:
    """Return the rates of the network and of the gates, by the names of their curves."""
    parts = {"network": model.backbone, "gates": model.gates}
    rates = {}
    for name, part in parts.items():
        own = {id(parameter) for parameter in part.parameters()}
        of = [group["lr"] for group in groups if own & {id(p) for p in group["params"]}]
        if of:
            rates[f"lr/{name}"] = float(max(of))
    return rates
