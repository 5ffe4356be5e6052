"""The stages. Each is a function of the kit that gives what goes into its JSON, or None where it is not finished.

Random weights, but for the two trainings: how fast something runs does not depend on what a network knows.
"""

from __future__ import annotations

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

import timm
import torch
from torch import Tensor, nn

import mhprobe
from mhprobe.classifier import GatedClassifier
from mhprobe.data.batch import Batch
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened
from mhprobe.surgery.speed import speed_table

NAMES = {"vit": "vit_base_patch16_224", "swin": "swin_base_patch4_window7_224"}
TINY = {
    "vit": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3},
    "swin": {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 3)},
}


@dataclass(frozen=True)
class Kit:
    """folder: that of the kit. root: the source. tiny: shrunk, for a test. minutes: for one piece of a training."""

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
        return timm.create_model(NAMES[kind], num_classes=10, **(TINY[kind] if self.tiny else {})).to(self.device)

    def batch(self, model: Any, images: int) -> Batch:
        size = mhprobe.backbones.input_spec(model)["size"]
        pixels = torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(0)).to(self.device)
        index = torch.arange(images, device=self.device)
        return Batch(pixels, index % 10, index, torch.ones_like(index, dtype=torch.bool))


def stages() -> dict[str, Callable[[Kit], Any]]:
    """By name, in the order in which they are worth doing."""
    return {
        "tests": run_tests,
        "train_vit": lambda kit: train(kit, "vit"),
        "train_swin": lambda kit: train(kit, "swin"),
        "tuning_speed": tuning_speed,
        "measuring_time": measuring_time,
        "searching_time": searching_time,
        "pruned_speed": pruned_speed,
    }


# the stages


def run_tests(kit: Kit) -> dict[str, Any]:
    """The tests marked ``gpu``; the last line says how many passed, and how many had no GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=kit.root, text=True, capture_output=True, timeout=540)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])
    return {"said": done.stdout.strip().splitlines()[-5:]}


def train(kit: Kit, kind: str) -> dict[str, Any] | None:
    """The wide twin of the shipped network to its end, in as many pieces as it takes; the Swin learns from the ViT."""
    name, out = f"gpu_{kind}", kit.folder / "runs"
    found = sorted(out.glob(f"{name}/*/metrics.json"))
    if not found and not _trained(kit, kind, name, out):
        return None
    folder = sorted(out.glob(f"{name}/*/metrics.json"))[-1].parent
    return {"folder": str(folder.relative_to(kit.folder)), **json.loads((folder / "metrics.json").read_text())}


def _trained(kit: Kit, kind: str, name: str, out: Path) -> bool:
    """Whether the training came to its end within the kit's minutes; otherwise its last checkpoint is there."""
    command = [sys.executable, "-m", "mhprobe.train", f"+experiment=cifar10_{kind}_stem", f"name={name}"]
    command += [f"data.root={next(kit.folder.glob('cifar10.*'))}", f"out={out}", f"cache_dir={kit.folder / 'cache'}"]
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
    more = ["data.batch_size=256", "data.augment.cutmix=1", "data.augment.mixup=0.2", "optim.ema=0.999"]
    more += ["optim.label_smoothing=0.05", "optim.warmup_epochs=5", "checkpoint.every_n_steps=200"]
    if kind == "vit":
        return [*more, "trainer.max_epochs=100", "backbone.patch_drop_rate=0", "backbone.embed_dim=192"]
    return [*more, "trainer.max_epochs=100", "backbone.embed_dim=48"]


def _shrunk(kind: str) -> list[str]:
    size = [f"++backbone.{key}={list(v) if isinstance(v, tuple) else v}" for key, v in TINY[kind].items()]
    less = ["data.limit_train=32", "data.limit_val=20", "data.limit_test=20", "data.batch_size=16"]
    return [*size, *less, "data.val_fraction=0.3", "trainer.max_epochs=1", "trainer.accelerator=cpu"]


def tuning_speed(kit: Kit) -> list[dict[str, Any]]:
    """Images per second of a training step in bfloat16, of the gated classifier and of the bare timm model."""
    rows = []
    for kind in NAMES:
        for compiled in (False, True) if kit.device.type == "cuda" else (False,):
            for what in ("mhprobe", "timm"):
                rows.append(
                    {"network": NAMES[kind], "compile": compiled, "loop": what, **_step(kit, kind, compiled, what)}
                )
                print(f"  {rows[-1]}", flush=True)
    return rows


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
    return {"images_per_s": len(batch.images) / middle, "batch": len(batch.images), "first_step_s": first}


def measuring_time(kit: Kit) -> list[dict[str, Any]]:
    """Seconds of importance, SVCCA and single-head ablation on a ViT, by the notebook's way in."""
    model = kit.network("vit").eval()
    batches = [kit.batch(model, 4 if kit.tiny else 100)] * (1 if kit.tiny else 10)
    images = sum(len(batch.images) for batch in batches)
    rows = []
    for name in ("GateImportance", "SVCCA", "AblationDelta"):
        taken = _seconds(kit, functools.partial(mhprobe.measure, model, batches, [getattr(mhprobe.measures, name)]))
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
        trace = functools.partial(mhprobe.masking_curve, model, batches, "head", steps=steps, search=search)
        taken = _seconds(kit, trace)
        images = sum(len(batch.images) for batch in batches)
        rows.append({"network": NAMES["vit"], "search": name, "steps": steps, "images": images, "seconds": taken})
        print(f"  {rows[-1]}", flush=True)
    return rows


def pruned_speed(kit: Kit) -> list[dict[str, Any]]:
    """Dense, masked and pruned networks, images per second, as ``prune.speed=true`` has them."""
    rows = []
    for kind in NAMES:
        model = kit.network(kind).eval()
        found = speed_table(model, batches=(2,), rounds=2, seconds=0) if kit.tiny else speed_table(model)
        rows += [{"network": NAMES[kind], **row} for row in found]
    return rows


def _seconds(kit: Kit, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if kit.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
