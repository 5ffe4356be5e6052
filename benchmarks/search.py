"""Greedy searches on a trained model: every candidate through the whole model, against the exact and the fast search.

The naive search is not run to its end: a sample of its evaluations is timed between the steps of
the others and scaled to their number. It would choose what the exact search chooses; that is
checked at the first step, against every candidate on every image. What is compared is CPU time: a
search takes minutes, in which a busy machine would favour one side or the other.

Without CIFAR-10 (--cifar) the images are generated scenes, and their labels what the unmasked
network says of them,
two in ten drawn at random: a stand-in on which the network is as often wrong as on its own data.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import mhprobe
from benchmarks.harness.models import whole_model
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, single
from mhprobe.backbones import input_spec
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.batch import Batch
from mhprobe.data.cifar10 import Cifar10
from mhprobe.data.scenes import Scenes
from mhprobe.masking.base import Evaluate
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.search.base import Search, SearchChoice, SearchStep
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened
from mhprobe.scoring.parts.evaluate import Evaluator

WEIGHTS = Path(__file__).parents[1] / "weights" / "cifar10_vit_stem.safetensors"
BATCH = 100
WRONG = 0.2  # share of a stand-in's labels
FAST = {"head": Screened(best=20, then=Racing()), "index": Screened(best=4, then=Racing())}
AIM = {"head": (">= 1.8", ">= 6"), "index": (">= 2", "")}


def run(size: Size) -> Iterator[Ratio]:
    images = size.pick(24, 300, 2_000)
    model = mhprobe.load(WEIGHTS)
    split = (
        Split.of_cifar(size, model, images) if size.cifar else Split.of_scenes(size, model, images)
    )
    yield from _compare(model, split, "index", size.pick(1, 8, 12))
    yield from _compare(model, split, "head", size.pick(1, 3, 20))


@dataclass(frozen=True)
class Split:
    """Images (N, 3, h, w) as the model wants them, in memory, and labels (N,)."""

    name: str
    images: Tensor
    labels: Tensor

    @classmethod
    def of_cifar(cls, size: Size, model: nn.Module, images: int) -> Split:
        return cls("CIFAR-10", *_validation(size, model, Cifar10(str(size.cifar)), images))

    @classmethod
    def of_scenes(cls, size: Size, model: nn.Module, images: int) -> Split:
        pixels, _ = _validation(size, model, Scenes(train=2 * images), images)
        generator = torch.Generator().manual_seed(0)
        with torch.inference_mode():
            classes = torch.cat([model(some).argmax(1) for some in pixels.split(BATCH)])
        drawn = torch.randint(10, classes.shape, generator=generator)
        return cls(
            "scenes",
            pixels,
            torch.where(torch.rand(len(classes), generator=generator) < WRONG, drawn, classes),
        )

    def batches(self, chosen: Tensor | None = None) -> Iterator[Batch]:
        """The images, or those at some positions."""
        index = torch.arange(len(self.labels)) if chosen is None else chosen
        for at in index.split(BATCH):
            yield Batch(self.images[at], self.labels[at], at, torch.ones(len(at), dtype=torch.bool))

    def evaluator(self, model: nn.Module) -> Evaluate:
        return Evaluator(model, self.batches, len(self.labels), pick=self.batches)


def _validation(
    size: Size, model: nn.Module, source: Cifar10 | Scenes, images: int
) -> tuple[Tensor, Tensor]:
    data = ImageData(
        source, batch_size=BATCH, val_fraction=0.5, limit_val=images, cache_dir=size.cache
    )
    data.prepare_data()
    data.setup()
    data.spec = InputSpec(**input_spec(model))
    batches = list(data.batches("val"))
    return torch.cat([batch.images for batch in batches]), torch.cat(
        [batch.labels for batch in batches]
    )


def _compare(model: nn.Module, split: Split, name: str, steps: int) -> Iterator[Ratio]:
    layout = mhprobe.attach(model).layout
    units = make_units(name, layout)
    orders: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {"naive": []}
    _one_evaluation(model, split, units.masks[0])  # warm-up

    def sample(step: SearchStep) -> None:
        seconds["naive"].append(_one_evaluation(model, split, step.masks[0]) * len(step.masks))

    for search, options in {"exact": Exact(), "fast": FAST[name]}.items():
        timed = _Timed(
            options, f"{name}, {search}", sample if search == "exact" else lambda step: None
        )
        wanted = min(steps, len(units) - 1)
        (path,) = KeepBest(search=timed).paths(units, layout, split.evaluator(model), wanted)
        orders[search] = [units.names.index(unit) for unit in path.names]
        seconds[search] = timed.seconds
    evaluate = split.evaluator(model)
    if orders["exact"][0] != int(evaluate(units.masks).correct.argmax()):
        raise RuntimeError("the exact search does not choose what the exhaustive one does")
    accuracy = {
        search: evaluate(
            torch.stack([units.masks[order[: k + 1]].any(0) for k in range(len(order))])
        ).accuracy
        for search, order in orders.items()
    }
    what = f"units={name}, {len(seconds['naive'])} steps, {len(split.labels)} images ({split.name})"
    for search, aim in zip(orders, AIM[name], strict=True):
        yield _ratio(
            f"{what}: CPU time, naive (sampled) / {search}", seconds["naive"], seconds[search], aim
        )
    behind = (accuracy["exact"] - accuracy["fast"]).max().item() * 100
    yield single(
        f"{what}: points that fast falls behind exact, at most",
        behind,
        "<= 0.5" if name == "head" else "",
    )


@dataclass(frozen=True)
class _Timed:
    """A search that notes the CPU time of each of its steps.

    before: is called before each, and not counted.
    """

    search: Search
    label: str
    before: Callable[[SearchStep], None]
    seconds: list[float] = field(default_factory=list)

    def choose(self, step: SearchStep, evaluate: Evaluate) -> SearchChoice:
        self.before(step)
        start = time.process_time()
        choice = self.search.choose(step, evaluate)
        self.seconds.append(time.process_time() - start)
        print(
            f"  {self.label}, step {step.number}: {self.seconds[-1]:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return choice


def _one_evaluation(model: nn.Module, split: Split, mask: Tensor) -> float:
    start = time.process_time()
    for batch in split.batches():
        whole_model(model, batch.images, mask[None])
    return time.process_time() - start


def _ratio(what: str, above: list[float], below: list[float], limit: str) -> Ratio:
    """Of the sums over steps; the quartiles are over steps."""
    ratios = torch.tensor([a / b for a, b in zip(above, below, strict=True)])
    low, high = ratios.quantile(torch.tensor([0.25, 0.75])).tolist()
    return Ratio(what, sum(above) / sum(below), low, high, len(above), limit)
