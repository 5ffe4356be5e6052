"""A timm backbone with a gate on every head, trained to classify. It does not know that it is being watched."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.tally import Tally


class GatedClassifier(L.LightningModule):
    """Backbone, gates, loss and optimizer.

    description: what rebuilds the backbone (see mhprobe.weights), kept in every checkpoint beside plain timm keys
        (``backbone.*``) and the gates (``gates.*``).
    lr, weight_decay: AdamW. layer_decay: factor on the learning rate per layer below the head (fine-tuning), None
        for the same rate everywhere. warmup_epochs: linear from 0; then a cosine down to ``min_lr`` * lr.
    learnable_gates: train the gates too, at ``gate_lr``.
    """

    def __init__(
        self,
        backbone: nn.Module,
        description: dict[str, Any],
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        layer_decay: float | None = None,
        warmup_epochs: float = 1.0,
        min_lr: float = 0.01,
        label_smoothing: float = 0.0,
        learnable_gates: bool = False,
        gate_lr: float = 1e-2,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.gates = attach(backbone, learnable=learnable_gates)
        self.description = description
        self.lr, self.weight_decay, self.layer_decay = lr, weight_decay, layer_decay
        self.warmup_epochs, self.min_lr, self.gate_lr = warmup_epochs, min_lr, gate_lr
        self.results: dict[str, float] = {}  # the last epoch's numbers in full precision; what is logged is float32
        self.loss = nn.CrossEntropyLoss(label_smoothing=label_smoothing)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> (B, C) logits."""
        return self.backbone(images)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(self(batch.images).float(), batch.labels if batch.targets is None else batch.targets)
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss became {loss.item()} at epoch {self.current_epoch}, step {self.global_step}; training "
                f"stopped before this step changed the weights. Lower optim.lr or set trainer.gradient_clip_val, and "
                f"go on from the last checkpoint with ckpt_path=last."
            )
        self.log("train/loss", loss.detach(), prog_bar=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        self._start("val", whole=self.trainer.limit_val_batches == 1.0)

    def on_test_epoch_start(self) -> None:
        self._start("test", whole=self.trainer.limit_test_batches == 1.0)

    def _start(self, split: str, whole: bool) -> None:
        images = self.trainer.datamodule.sizes[split]  # type: ignore[attr-defined]
        self.tally = Tally(images, check_images=whole).to(self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.tally.update(batch, self(batch.images))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        # full precision, like the probes: a curve's unmasked accuracy is this accuracy, to the image
        with torch.autocast(self.device.type, enabled=False):
            self.tally.update(batch, self(batch.images))

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")

    def _finish(self, split: str) -> None:
        result = self.tally.compute()  # the same on every rank
        exact = {f"{split}/{name}": float(result[name]) for name in ("accuracy", "loss")}
        self.results.update(exact)
        self.log_dict(exact, prog_bar=True)

    def configure_optimizers(self) -> Any:
        from timm.optim import param_groups_layer_decay, param_groups_weight_decay

        backbone: Any = self.backbone
        no_decay = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else set()
        if self.layer_decay is None:
            groups = param_groups_weight_decay(self.backbone, self.weight_decay, no_weight_decay_list=no_decay)
        else:
            groups = param_groups_layer_decay(
                self.backbone, self.weight_decay, no_weight_decay_list=no_decay, layer_decay=self.layer_decay
            )
        for group in groups:
            group["lr"] = self.lr * group.pop("lr_scale", 1.0)
        if self.gates.values.requires_grad:
            groups.append({"params": [self.gates.values], "lr": self.gate_lr, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, lr=self.lr)

        steps = self._steps()
        warmup = round(self.warmup_epochs * steps / self.trainer.max_epochs) if self.trainer.max_epochs else 0

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            progress = min(1.0, (step - warmup) / max(1, steps - warmup))
            return self.min_lr + (1 - self.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _steps(self) -> int:
        """Optimizer steps of the whole run.

        Not trainer.estimated_stepping_batches: asked for here, it makes the training loader before a checkpoint's
        loader state is there, and a resumed run would begin its epoch anew.
        """
        trainer: Any = self.trainer
        data, limit = trainer.datamodule, trainer.limit_train_batches
        # the loader drops the remainder, and makes one batch of a set that is smaller than a batch
        batches = max(1, data.sizes["train"] // (data.batch_size * trainer.world_size))
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        steps = math.ceil(batches / trainer.accumulate_grad_batches) * trainer.max_epochs
        return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mhprobe"] = self.description
        # a compiled backbone adds nothing, a metric in flight must not ride along
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith("tally.")}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        theirs = checkpoint.get("mhprobe", {}).get("backbone")
        if theirs != self.description["backbone"]:
            raise UserError(
                f"checkpoint: expected backbone {self.description['backbone']}, got {theirs}. Use the backbone it was "
                f"trained with, or weights=<file> to let the file choose."
            )
