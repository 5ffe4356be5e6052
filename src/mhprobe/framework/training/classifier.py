"""A backbone with a gate on every head, trained to classify.

It does not know that it is being watched.
"""

import copy
import math
from collections.abc import Callable, Collection
from typing import Any, Literal

import lightning as L
import torch
from timm.optim.muon import Muon
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import attach, family_of, gives_features
from mhprobe.backbones.parts.freezing import Frozen, freeze
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.gates import HeadGates
from mhprobe.heads import HeadLayout, Kind
from mhprobe.scoring.parts.tally import Tally
from mhprobe.weights.teacher import Recalled, Teacher, distillation


class GatedClassifier(L.LightningModule):
    """Backbone, gates, loss and optimizer.

    description: settings that rebuild the backbone (weights.checkpoint), kept in every checkpoint.
    algorithm: "adamw", or timm's "muon": orthogonalised momentum for matrices and convolutions,
        AdamW for the rest, at the same learning rate (Jordan et al., 2024; Liu et al., 2025, arXiv
        2502.16982).
    lr, weight_decay: of the optimizer. layer_decay: factor on the learning rate per layer below the
        head (fine-tuning), None for the same rate everywhere. warmup_epochs: linear from 0; then a
        cosine down to ``min_lr`` * lr.
    units: as for ``attach``. make_gates: (model, layout) -> gates, by default fixed; learned ones
        train at ``gate_lr``. penalty: price of open heads, (amount (A,), share of the run done) ->
        () in nats; its parameters are maximised.
    teacher: a ``Teacher`` (mhprobe.weights.teacher). The loss is teacher_weight of the distance to
        its answers at ``temperature``, and 1 - teacher_weight of the loss on labels.
    frozen: what is not trained; "backbone" is all but classifier and gates, other values are those
    of ``freeze``.
    """

    def __init__(  # noqa: PLR0913 -- its arguments are the keys of conf/optim/ and conf/gates/
        self,
        backbone: nn.Module,
        description: dict[str, Any],
        *,
        algorithm: Literal["adamw", "muon"] = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        layer_decay: float | None = None,
        warmup_epochs: float = 1.0,
        min_lr: float = 0.01,
        label_smoothing: float = 0.0,
        teacher: Teacher | None = None,
        teacher_weight: float = 0.5,
        temperature: float = 2.0,
        make_gates: Callable[[nn.Module, HeadLayout], HeadGates] = HeadGates,
        units: Collection[Kind] | None = None,
        penalty: nn.Module | None = None,
        gate_lr: float = 1e-2,
        frozen: Frozen = "nothing",
    ) -> None:
        super().__init__()
        self.backbone = (
            backbone.train()
        )  # loaded weights come in eval mode, and Lightning leaves that as it finds it
        self.gates = attach(backbone, make=make_gates, units=units)
        self.penalty = penalty
        freeze(backbone, frozen)
        if not any(
            parameter.requires_grad
            for parameter in (*backbone.parameters(), *self.gates.parameters())
        ):
            raise UserError(
                f"frozen: with frozen={frozen} and fixed gates nothing is left to train."
            )
        self.description = description
        if algorithm == "muon" and penalty is not None and list(penalty.parameters()):
            raise UserError(
                "algorithm: muon cannot maximise the multipliers of these gates' penalty; use "
                "adamw."
            )
        self.algorithm, self.lr, self.weight_decay, self.layer_decay = (
            algorithm,
            lr,
            weight_decay,
            layer_decay,
        )
        self.warmup_epochs, self.min_lr, self.gate_lr = warmup_epochs, min_lr, gate_lr
        self.teacher, self.teacher_weight, self.temperature = teacher, teacher_weight, temperature
        self.results: dict[
            str, float
        ] = {}  # of these weights, in full precision; what is logged is float32
        self.right = torch.zeros(
            0, dtype=torch.bool
        )  # (N,) the test images that were classified rightly
        self.loss = nn.CrossEntropyLoss(label_smoothing=label_smoothing)

    @property
    def features_only(self) -> bool:
        """True if there is no classifier: labels say nothing about the features that come out."""
        return gives_features(self.backbone)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> (B, C) logits."""
        return self.backbone(images)

    def on_fit_start(self) -> None:
        if isinstance(self.teacher, Recalled):
            with self.trainer.precision_plugin.forward_context():
                self.teacher.prepare(self.trainer.datamodule, self.device)  # type: ignore[attr-defined]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self(batch.images).float()
        loss = self.loss(logits, batch.labels if batch.targets is None else batch.targets)
        if self.teacher is not None:
            distance = distillation(logits, self.teacher(batch, self.temperature), self.temperature)
            self._log_mean("train/distance_to_teacher", distance)
            loss = (1 - self.teacher_weight) * loss + self.teacher_weight * distance
        self._log_mean("train/loss", loss, prog_bar=True)
        return loss if self.penalty is None else loss + self._price()

    def _log_mean(self, name: str, value: Tensor, **options: Any) -> None:
        """Log the mean over all processes in steps that loggers record; in others no process waits for the rest."""
        value = value.detach()
        every = self.trainer.log_every_n_steps if ranks.size() > 1 else 0  # type: ignore[attr-defined]
        if every and not (self.global_step + 1) % every:
            value = ranks.total(value.clone()) / ranks.size()
        self.log(name, value, **options)

    def _price(self) -> Tensor:
        """() the price of the open heads, in nats."""
        assert self.penalty is not None
        amount = self.gates.amount()
        price = self.penalty(amount, min(1.0, self.global_step / self.total_steps))
        heads = amount.detach().sum()
        self.log("train/penalty", price.detach())
        self.log("train/open_heads", heads, prog_bar=True)
        self.log(
            "train/open_heads_per_layer", heads / len(self.gates.layout.sites)
        )  # Voita's code averages layers
        return price

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.gates.project()

    def on_validation_epoch_start(self) -> None:
        trainer: Any = self.trainer
        split = "test" if trainer.testing else "val"
        whole = getattr(trainer, f"limit_{split}_batches") == 1.0
        self.tally = Tally(trainer.datamodule.sizes[split], check_images=whole).to(self.device)

    on_test_epoch_start = on_validation_epoch_start

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.tally.update(batch, self(batch.images))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        if self.features_only:
            return
        # full precision, like the probes: a curve's unmasked accuracy is this accuracy, to the
        # image
        with torch.autocast(self.device.type, enabled=False):
            self.tally.update(batch, self(batch.images))

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        if not self.features_only:
            self._finish("test")

    def _finish(self, split: str) -> None:
        result = self.tally.compute()  # the same on every rank
        exact = {f"{split}/{name}": float(result[name]) for name in ("accuracy", "loss")}
        self.results.update(exact)
        if split == "test":
            self.right = (
                result["right"].cpu().reshape(-1)
            )  # of one image torchmetrics makes a number
        self.log_dict(exact, prog_bar=True)

    def configure_optimizers(self) -> Any:
        groups = family_of(self.backbone).parameter_groups(
            self.backbone, self.weight_decay, self.layer_decay
        )
        for group in groups:
            group["lr"] = self.lr * group.pop("lr_scale", 1.0)
        if gates := [parameter for parameter in self.gates.parameters() if parameter.requires_grad]:
            groups.append({"params": gates, "lr": self.gate_lr, "weight_decay": 0.0})
        if self.penalty is not None and (multipliers := list(self.penalty.parameters())):
            groups.append(
                {
                    "params": multipliers,
                    "lr": self.penalty.lr,
                    "weight_decay": 0.0,
                    "maximize": True,
                }
            )
        make: Any = torch.optim.AdamW if self.algorithm == "adamw" else Muon
        optimizer = make([group for group in groups if group["params"]], lr=self.lr)
        whole, most = self._steps(), self.trainer.max_steps
        steps = self.total_steps = whole if most < 0 else min(whole, most)
        warmup = (
            round(self.warmup_epochs * whole / self.trainer.max_epochs)
            if self.trainer.max_epochs
            else 0
        )

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            progress = min(1.0, (step - warmup) / max(1, steps - warmup))
            return self.min_lr + (1 - self.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _steps(self) -> int:
        """Optimizer steps of all epochs."""
        trainer: Any = (
            self.trainer
        )  # its estimated_stepping_batches would make the loader before its state is restored
        data, limit = trainer.datamodule, trainer.limit_train_batches
        # the loader drops the remainder, and makes one batch of a set that is smaller than a batch
        batches = max(1, data.sizes["train"] // (data.batch_size * trainer.world_size))
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        return math.ceil(batches / trainer.accumulate_grad_batches) * trainer.max_epochs

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mhprobe"], checkpoint["results"] = self.description, dict(self.results)
        # an average's, if there is one
        saved = copy.deepcopy(self.gates)
        state = checkpoint["state_dict"].items()
        saved.load_state_dict(
            {key.removeprefix("gates."): part for key, part in state if key.startswith("gates.")}
        )
        if (saved.effective() != saved.values).any():
            checkpoint["mhprobe"] = {**self.description, "gates": saved.effective().tolist()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.results = checkpoint.get("results", {})
        theirs = checkpoint.get("mhprobe", {})
        states = (checkpoint["state_dict"], self.state_dict())
        differ = [
            key for key in ("backbone", "kept") if theirs.get(key) != self.description.get(key)
        ]
        gates = [
            {key for key in state if key.startswith(("gates.", "penalty."))} for state in states
        ]
        if differ := [*differ, *sorted(gates[0] ^ gates[1])]:
            raise UserError(
                "checkpoint: expected the backbone and gates of this run, got others (they differ "
                "in "
                f"{', '.join(differ)}). Use those it was trained with, or weights=<file> to start "
                "from its weights."
            )
