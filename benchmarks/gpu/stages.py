"""The stages.

Each is a function of the kit that gives what goes into its JSON, or None where it is not finished.

Random weights, but for the two trainings: how fast something runs does not depend on what a network
knows.
"""

from __future__ import annotations

import csv
import functools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import timm
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.framework.training.checkpoints import SeedEachStep
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.framework.training.ends import StopAtNonFinite
from mhprobe.framework.training.screen import ShowsTraining
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened
from mhprobe.surgery.speed import speed_table

NAMES = {"vit": "vit_base_patch16_224", "swin": "swin_base_patch4_window7_224"}
TINY = {
    "vit": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3},
    "swin": {
        "img_size": 16,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 12,
        "depths": (1, 1),
        "num_heads": (2, 3),
    },
}


@dataclass(frozen=True)
class Kit:
    """folder: that of the kit.

    root: the source. tiny: shrunk, for a test. minutes: for one piece of a training.
    """

    folder: Path
    root: Path
    tiny: bool
    minutes: float

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def network(self, kind: str) -> nn.Module:
        torch.manual_seed(0)
        return timm.create_model(
            NAMES[kind], num_classes=10, **(TINY[kind] if self.tiny else {})
        ).to(self.device)

    def batch(self, model: Any, images: int) -> Batch:
        size = mhprobe.backbones.input_spec(model)["size"]
        pixels = torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(0)).to(
            self.device
        )
        index = torch.arange(images, device=self.device)
        return Batch(pixels, index % 10, index, torch.ones_like(index, dtype=torch.bool))


def stages() -> dict[str, Callable[[Kit], Any]]:
    """By name, in the order in which they are worth doing."""
    return {
        "tests": lambda kit: run_tests(kit, "tests/framework/gpu/test_gpu.py"),
        "commands": lambda kit: run_tests(kit, "tests/framework/gpu/test_commands.py"),
        "two_ranks": two_ranks,
        "train_vit": lambda kit: train(kit, "vit"),
        "train_swin": lambda kit: train(kit, "swin"),
        "tuning_speed": tuning_speed,
        "measuring_time": measuring_time,
        "searching_time": searching_time,
        "pruned_speed": pruned_speed,
    }


# the stages


def run_tests(kit: Kit, tests: str) -> dict[str, Any]:
    """Tests marked ``gpu``; the last line says how many passed, and how many had no GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, cwd=kit.root, text=True, capture_output=True, timeout=540)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])
    return {"said": done.stdout.strip().splitlines()[-5:]}


def two_ranks(kit: Kit) -> dict[str, Any]:
    """Importance and SVCCA on one process and on two, over NCCL where there are two GPUs: how far they are apart."""
    devices = torch.cuda.device_count()
    if devices < 2 and not kit.tiny:
        return {"left_out": f"needs two GPUs, this machine has {devices}"}
    tables, kind = {}, "cpu" if kit.tiny else "gpu"
    for count in (1, 2):
        out = kit.folder / "runs" / f"ranks_{count}"
        command = [
            sys.executable,
            "-m",
            "mhprobe.probe",
            "weights=random",
            "data=scenes",
            "data.source.train=200",
            "data.source.test=100",
        ]
        command += [
            "backbone=vit",
            "measure=[gate_importance,svcca]",
            f"cache_dir={kit.folder / 'cache'}",
        ]
        command += [
            f"++backbone.{key}={value}" for key, value in {**TINY["vit"], "img_size": 32}.items()
        ]
        command += [
            f"trainer.accelerator={kind}",
            "trainer.precision=32-true",
            f"hydra.run.dir={out}",
        ]
        command += (
            ["trainer=ddp", f"trainer.devices={count}"] if count > 1 else ["trainer.devices=1"]
        )
        subprocess.run(command, cwd=kit.root, check=True)
        for name in ("gate_importance", "svcca"):
            with (out / "tables" / f"{name}.csv").open(newline="") as file:
                tables[name, count] = torch.tensor(
                    [float(row["value"]) for row in csv.DictReader(file)]
                )
    apart = {
        name: float(((tables[name, 1] - tables[name, 2]).abs() / tables[name, 1].abs().max()).max())
        for name in ("gate_importance", "svcca")
    }
    if not max(apart.values()) < 1e-3:
        raise RuntimeError(f"two ranks give other numbers than one: {apart}")
    return {"backend": "gloo" if kit.tiny else "nccl", "largest_difference": apart}


def train(kit: Kit, kind: str) -> dict[str, Any] | None:
    """The wide twin of the shipped network to its end, in as many pieces as it takes; the Swin learns from the ViT."""
    name, out = f"gpu_{kind}", kit.folder / "runs"
    files = sorted(out.glob(f"{name}/*/metrics.json"))
    if not files and not _trained(kit, kind, name, out):
        return None
    folder = sorted(out.glob(f"{name}/*/metrics.json"))[-1].parent
    return {
        "folder": str(folder.relative_to(kit.folder)),
        **json.loads((folder / "metrics.json").read_text()),
    }


def _trained(kit: Kit, kind: str, name: str, out: Path) -> bool:
    """Whether the training came to its end within the kit's minutes; otherwise its last checkpoint is there."""
    command = [
        sys.executable,
        "-m",
        "mhprobe.train",
        f"+experiment=cifar10_{kind}_stem",
        f"name={name}",
    ]
    command += [
        f"data.root={next(kit.folder.glob('cifar10.*'))}",
        f"out={out}",
        f"cache_dir={kit.folder / 'cache'}",
    ]
    command += ["measure=[]", "masking=none", *(_shrunk(kind) if kit.tiny else _wide(kind))]
    if list(out.glob(f"{name}/*/checkpoints/last.ckpt")):
        command.append("ckpt_path=last")
    if kind == "swin" and (teachers := sorted(out.glob("gpu_vit/*/model.safetensors"))):
        command += [f"optim.teacher={teachers[-1]}"]
    with subprocess.Popen(command, cwd=kit.root) as process:
        try:
            code = process.wait(timeout=60 * kit.minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # finishes the step and saves
            code = process.wait()
    if code not in (0, 143):
        raise RuntimeError(f"mhprobe.train ended with {code}")
    return code == 0


def _wide(kind: str) -> list[str]:
    """What makes the recipe for a CPU one for a GPU: no patches left out, more width, epochs and augmentation."""
    more = [
        "data.batch_size=256",
        "data.augment.cutmix=1",
        "data.augment.mixup=0.2",
        "optim.ema=0.999",
    ]
    more += ["optim.label_smoothing=0.05", "optim.warmup_epochs=5", "checkpoint.every_n_steps=200"]
    if kind == "vit":
        return [
            *more,
            "trainer.max_epochs=100",
            "backbone.patch_drop_rate=0",
            "backbone.embed_dim=192",
        ]
    return [*more, "trainer.max_epochs=100", "backbone.embed_dim=48"]


def _shrunk(kind: str) -> list[str]:
    size = [
        f"++backbone.{key}={list(v) if isinstance(v, tuple) else v}"
        for key, v in TINY[kind].items()
    ]
    less = ["data.limit_train=32", "data.limit_val=20", "data.limit_test=20", "data.batch_size=16"]
    return [
        *size,
        *less,
        "data.val_fraction=0.3",
        "trainer.max_epochs=1",
        "trainer.accelerator=cpu",
    ]


def tuning_speed(kit: Kit) -> list[dict[str, Any]]:
    """Images per second of a training step in bfloat16: a whole training, the gated classifier, the bare timm model.

    A whole training is Lightning's loop with all that watches it, and images that come from the
    host.
    """
    rows = []
    for kind in NAMES:
        for compiled in (False, True) if kit.device.type == "cuda" else (False,):
            for what in ("training", "mhprobe", "timm"):
                taken = (
                    _training(kit, kind, compiled)
                    if what == "training"
                    else _step(kit, kind, compiled, what)
                )
                rows.append({"network": NAMES[kind], "compile": compiled, "loop": what, **taken})
                print(f"  {rows[-1]}", flush=True)
    return rows


class Same(L.LightningDataModule):
    """One batch of images, again and again."""

    def __init__(self, batch: Batch, steps: int) -> None:
        super().__init__()
        self.batch, self.steps, self.batch_size = batch, steps, len(batch.labels)
        self.sizes = {"train": steps * self.batch_size}

    def train_dataloader(self) -> DataLoader:
        pinned = torch.cuda.is_available()
        return DataLoader([self.batch] * self.steps, batch_size=None, pin_memory=pinned)


class Clock(L.Callback):
    """The seconds of all steps but the first few, in which a GPU is still busy with itself."""

    def __init__(self, kit: Kit, skipped: int) -> None:
        self.kit, self.skipped, self.begin, self.first, self.seconds = kit, skipped, 0.0, 0.0, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin = _now(self.kit)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 1:
            self.first = _now(self.kit) - self.begin
        if trainer.global_step == self.skipped:
            self.begin = _now(self.kit)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds = _now(self.kit) - self.begin


def _training(kit: Kit, kind: str, compiled: bool) -> dict[str, float]:
    from mhprobe.framework.training.averaging import Average  # older Lightning has none

    model = kit.network(kind).cpu().train()
    skipped, steps = (1, 2) if kit.tiny else (5, 35)
    batch = Batch(
        *(None if part is None else part.cpu() for part in kit.batch(model, 4 if kit.tiny else 128))
    )
    clock = Clock(kit, skipped)
    watching = [
        ShowsTraining(),
        SeedEachStep(0),
        StopAtNonFinite(),
        Average(decay=0.999),
    ]
    trainer = L.Trainer(
        max_epochs=1,
        accelerator=kit.device.type,
        devices=1,
        precision="bf16-mixed",
        callbacks=[*watching, clock],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    classifier = GatedClassifier(model, {"backbone": {}}, lr=1e-5)
    if compiled:
        model.compile()
    trainer.fit(classifier, datamodule=Same(batch, steps))
    images = (steps - skipped) * len(batch.labels)
    return {
        "images_per_s": images / clock.seconds,
        "batch": len(batch.labels),
        "first_step_s": clock.first,
    }


def _step(kit: Kit, kind: str, compiled: bool, what: str) -> dict[str, float]:
    model = kit.network(kind).train()
    batch = kit.batch(model, 4 if kit.tiny else 128)
    if what == "mhprobe":
        classifier = GatedClassifier(model, {"backbone": {}}).to(kit.device)
        classifier.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
        loss_of = functools.partial(classifier.training_step, batch, 0)
    else:

        def loss_of() -> Tensor:
            return nn.functional.cross_entropy(model(batch.images), batch.labels)

    if compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        with torch.autocast(kit.device.type, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    first = _seconds(kit, step)
    step()
    taken = [_seconds(kit, step) for _ in range(1 if kit.tiny else 30)]
    middle = sorted(taken)[len(taken) // 2]
    return {
        "images_per_s": len(batch.images) / middle,
        "batch": len(batch.images),
        "first_step_s": first,
    }


def measuring_time(kit: Kit) -> list[dict[str, Any]]:
    """Seconds of importance, SVCCA and single-head ablation on a ViT, by the notebook's way in."""
    model = kit.network("vit").eval()
    batches = [kit.batch(model, 4 if kit.tiny else 100)] * (1 if kit.tiny else 10)
    images = sum(len(batch.images) for batch in batches)
    rows = []
    for name in ("GateImportance", "SVCCA", "AblationDelta"):
        taken = _seconds(
            kit,
            functools.partial(mhprobe.measure, model, batches, [getattr(mhprobe.measures, name)]),
        )
        rows.append({"network": NAMES["vit"], "measure": name, "images": images, "seconds": taken})
        print(f"  {rows[-1]}", flush=True)
    return rows


def searching_time(kit: Kit) -> list[dict[str, Any]]:
    """Seconds of the first steps of a greedy order of single heads: exact, and screened then racing."""
    model = kit.network("vit").eval()
    batches = [kit.batch(model, 8 if kit.tiny else 100)] * (1 if kit.tiny else 10)
    fast = Screened(best=20, then=Racing(epsilon=0.002, delta=0.01, batch=100, seed=0))
    rows, steps = [], 1 if kit.tiny else 3
    for name, search in (("fast", fast), ("exact", Exact(parts=2 if kit.tiny else 24))):
        trace = functools.partial(
            mhprobe.masking_curve, model, batches, "head", steps=steps, search=search
        )
        taken = _seconds(kit, trace)
        images = sum(len(batch.images) for batch in batches)
        rows.append(
            {
                "network": NAMES["vit"],
                "search": name,
                "steps": steps,
                "images": images,
                "seconds": taken,
            }
        )
        print(f"  {rows[-1]}", flush=True)
    return rows


def pruned_speed(kit: Kit) -> list[dict[str, Any]]:
    """Dense, masked and pruned networks, images per second, as ``prune.speed=true`` has them."""
    rows = []
    for kind in NAMES:
        model = kit.network(kind).eval()
        table = (
            speed_table(model, batches=(2,), rounds=2, seconds=0)
            if kit.tiny
            else speed_table(model)
        )
        rows += [{"network": NAMES[kind], **row} for row in table]
    return rows


def _seconds(kit: Kit, work: Callable[[], object]) -> float:
    start = _now(kit)
    work()
    return _now(kit) - start


def _now(kit: Kit) -> float:
    """The time when the device has done all that it was told."""
    if kit.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
