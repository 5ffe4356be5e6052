"""Greedy searches on a trained model: every candidate through the whole model, against the exact and the fast search.

The naive search is not run to its end: a sample of its evaluations is timed between the steps of the others and scaled
to their number. It would choose what the exact search chooses; that is checked at the first step, against every
candidate on every image. What is compared is CPU time: a search takes minutes, in which a busy machine would favour one
side or the other.

Settings, in the environment: MHPROBE_BENCH_CIFAR (the archive, see conf/data/cifar10.yaml), MHPROBE_BENCH_IMAGES and
MHPROBE_BENCH_STEPS for a shorter run.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

import mhprobe
from benchmarks.ablation import whole_model
from benchmarks.timing import Ratio
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.cifar10 import Cifar10
from mhprobe.masking.base import Evaluate
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.search.base import Choice, Search, Step
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened
from mhprobe.masking.units import make_units
from mhprobe.scoring.evaluate import evaluator

WEIGHTS = Path(__file__).parents[1] / "weights" / "cifar10_vit_scratch.safetensors"
BATCH = 100
FAST = {"head": Screened(best=20, then=Racing()), "index": Screened(best=4, then=Racing())}
AIM = {"head": (">= 1.8", ">= 6"), "index": ("", ">= 2")}


def run() -> list[Ratio]:
    images = int(os.environ.get("MHPROBE_BENCH_IMAGES", 2000))
    steps = int(os.environ.get("MHPROBE_BENCH_STEPS", 20))
    data = ImageData(
        Cifar10(os.environ.get("MHPROBE_BENCH_CIFAR", "data/cifar10")),
        batch_size=BATCH,
        limit_val=images,
        cache_dir=os.environ.get("MHPROBE_BENCH_CACHE", ".cache/mhprobe"),
    )
    data.spec = InputSpec((32, 32))
    return [*_compare(data, "head", steps), *_compare(data, "index", min(steps, 12))]


def _compare(data: ImageData, name: str, steps: int) -> list[Ratio]:
    model = mhprobe.load(WEIGHTS)
    layout = mhprobe.attach(model).layout
    units = make_units(name, layout)
    searches = {"exact": Exact(), "fast": FAST[name]}
    orders: dict[str, list[int]] = {search: [] for search in searches}
    seconds: dict[str, list[float]] = {search: [] for search in ("naive", *searches)}
    _one_evaluation(model, data, units.masks[0])  # warm-up
    steps = min(steps, len(units) - 1)
    for search, options in searches.items():
        evaluate = evaluator(
            model, lambda: data.batches("val"), data.sizes["val"], pick=lambda some: data.batches("val", images=some)
        )
        timed = _Timed(options, f"{name}, {search}", seconds[search])
        (path,) = KeepBest(search=timed).paths(units, layout, evaluate, steps)
        orders[search] = [units.names.index(unit) for unit in path.names]
    for step in range(steps):
        naive = _one_evaluation(
            model, data, units.masks[orders["exact"][:step]].any(0) | units.masks[step % len(units)]
        )
        seconds["naive"].append(naive * (len(units) - step))
    evaluate = evaluator(model, lambda: data.batches("val"), data.sizes["val"])
    if orders["exact"][0] != _exhaustive_first(evaluate, units.masks):
        raise RuntimeError("search: the exact search does not choose what the exhaustive one does")
    accuracy = {
        search: evaluate(torch.stack([units.masks[order[: k + 1]].any(0) for k in range(len(order))])).accuracy
        for search, order in orders.items()
    }
    behind = (accuracy["exact"] - accuracy["fast"]).max().item() * 100
    what = f"units={name}, {len(seconds['naive'])} steps, {data.sizes['val']} images: naive (sampled) /"
    return [
        _ratio(f"{what} exact", seconds["naive"], seconds["exact"], AIM[name][0]),
        _ratio(f"{what} fast", seconds["naive"], seconds["fast"], AIM[name][1]),
        Ratio(f"units={name}: points that fast falls behind exact, at most", behind, behind, behind, 1, "<= 0.5"),
    ]


@dataclasses.dataclass(frozen=True)
class _Timed:
    """A search that notes how long each of its steps took."""

    search: Search
    label: str
    seconds: list[float]

    def choose(self, step: Step, evaluate: Evaluate) -> Choice:
        start = time.process_time()
        choice = self.search.choose(step, evaluate)
        self.seconds.append(time.process_time() - start)
        print(f"  {self.label}, step {step.number}: {self.seconds[-1]:.0f} s", file=sys.stderr, flush=True)
        return choice


def _one_evaluation(model: torch.nn.Module, data: ImageData, mask: Tensor) -> float:
    start = time.process_time()
    for batch in data.batches("val"):
        whole_model(model, batch.images, mask[None])
    return time.process_time() - start


def _exhaustive_first(evaluate, masks: Tensor) -> int:
    return int(evaluate(masks).correct.argmax())


def _ratio(what: str, above: list[float], below: list[float], limit: str) -> Ratio:
    """Of the sums over steps; the quartiles are over steps."""
    low, _, high = (
        torch.tensor([a / b for a, b in zip(above, below, strict=True)])
        .quantile(torch.tensor([0.25, 0.5, 0.75]))
        .tolist()
    )
    return Ratio(what, sum(above) / sum(below), low, high, len(above), limit)
