"""The order in which a study makes its figures, and about how long it will take.

What only looks at images is measured in one pass, and its figures are drawn at once. Then come panels that look at
images themselves, then measures that mask heads, which take long, and masking curves last.
Times are those of a few images, multiplied; they stand in front of the work, and nothing depends on them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.io.progress import duration
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Walk, feed

SHARE = 50  # a fiftieth of the images is looked at for an estimate
FEWEST = 8  # images; of fewer, most of the time is spent on starting


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a study.

    measures: taken in one pass. figures: drawn after it. curves: masking curves that the figures draw.
    """

    measures: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()

    def line(self, number: int, cost: str) -> str:
        """The step in the plan. cost: in words."""
        work = [f"measure {', '.join(self.measures)}"] if self.measures else []
        work += [f"masking curves {', '.join(self.curves)}"] if self.curves else []
        return f"  {number}. {'; '.join(work) or 'images that figures look at themselves'}: {cost}; then draw " + (
            ", ".join(self.figures) or "nothing yet"
        )


def steps(figures: Mapping[str, Mapping[str, Any]], measures: Mapping[str, Measure]) -> list[Step]:
    """The steps that make these figures, each figure in the first step after which it has what it needs.

    figures: by key, with the names in ``measure`` and ``curves``. measures: by name, those that fit the model; a figure
    that needs another one is drawn in the first step of its kind, where it is refused.
    """
    needed = {name: measures[name] for figure in figures.values() for name in figure["measure"] if name in measures}
    passes = _passes(needed) or [[]]
    number = {name: index for index, group in enumerate(passes) for name in group}
    own = [key for key, figure in figures.items() if not figure["measure"] and not figure["curves"]]
    curved = [key for key, figure in figures.items() if figure["curves"]]
    waiting: list[list[str]] = [[] for _ in passes]
    for key in figures:
        if key not in own and key not in curved:
            waiting[max((number.get(name, 0) for name in figures[key]["measure"]), default=0)].append(key)
    measuring = [Step(tuple(group), tuple(keys)) for group, keys in zip(passes, waiting, strict=True)]
    looking = 0 if passes[0] and _masks(needed[passes[0][0]]) else 1
    curves = dict.fromkeys(name for key in curved for name in figures[key]["curves"])
    planned = [*measuring[:looking], Step(figures=tuple(own)), *measuring[looking:]]
    planned.append(Step(figures=tuple(curved), curves=tuple(curves)))
    return [step for step in planned if step.measures or step.figures]


def sample(images: int, batch_size: int) -> int:
    """The number of images that an estimate looks at, of ``images``."""
    return min(images, batch_size, max(FEWEST, images // SHARE))


def seconds_per_image(model: nn.Module, measures: Mapping[str, Measure], walk: Walk, select: Walk) -> float | None:
    """Time that measures take per image of ``walk``, in seconds; None where none of them can look at it.

    select: over the images that some of them choose on first, which is counted in. What they compute once, at the end,
    is not. Measures have forgotten the images afterwards. A collective.
    """
    began = time.perf_counter()
    try:
        refused = feed(model, measures, walk, select)
        _wait(model)
    except UserError:
        return None
    finally:
        took = time.perf_counter() - began
        for each in measures.values():
            each.reset()
    return None if len(refused) == len(measures) else took / _images(walk())


def forward_seconds(model: nn.Module, walk: Walk) -> float:
    """Time of a forward pass per image, in seconds: of the second walk, since the first sets things up."""
    took = 0.0
    with torch.inference_mode():
        for _ in range(2):
            began = time.perf_counter()
            for batch in walk():
                model(batch.images)
            _wait(model)
            took = time.perf_counter() - began
    return took / _images(walk())


def forwards(spec: CurveSpec, layout: HeadLayout, steps: int | None, select: int, test: int) -> int:
    """Forward passes of an image that a curve takes at most, besides what scores its heads.

    select, test: images of the two splits. Searches leave candidates out, masks share blocks, and what is known from
    an earlier run is not asked again, so that it is often much less.
    """
    units = make_units(spec.units, layout, spec.exclude_layers)
    length = spec.order.length(units, layout)
    length = length if steps is None else min(steps, length)
    tried = sum(len(units) - step for step in range(length)) if hasattr(spec.order, "search") else 0
    reported = (length + 1) * getattr(spec.order, "repeats", 1)
    return tried * select + reported * (test + (select if spec.order.searches else 0))


def about(seconds: float | None, twin: float | None = None) -> str:
    """The cost of measuring in words. twin: seconds of the freshly initialised network."""
    if seconds is None and twin is None:
        return "not estimated"
    parts = [] if seconds is None else [f"about {duration(seconds)}"]
    parts += [] if twin is None else [f"about {duration(twin)} for the freshly initialised network"]
    return " and ".join(parts)


def _wait(model: nn.Module) -> None:
    """Until the device has done what it was told."""
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()


def _images(batches: Iterable[Batch]) -> int:
    """Return the number of images of this rank."""
    return max(1, sum(int(batch.valid.sum()) for batch in batches))


def _passes(measures: Mapping[str, Measure]) -> list[list[str]]:
    """Measures that look at one recorded pass together; then those that mask heads, by the masks that they share."""
    groups: dict[frozenset[Ablation], list[str]] = {frozenset(): []}
    for name, each in measures.items():
        groups.setdefault(_masks(each), []).append(name)
    return [group for group in groups.values() if group]


def _masks(measure: Measure) -> frozenset[Ablation]:
    needs: Collection[Any] = {*measure.needs, *(measure.select_needs or ())}
    return frozenset(need for need in needs if isinstance(need, Ablation))
