"""Plan of a run: the order in which questions are answered, with times extrapolated from a few images.

Measures that only record come first, in one pass, then questions that look at images, measures that mask heads, curves.
"""

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.io.progress import duration
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.questions.material import Material, Panel
from mhprobe.recording.measuring import Walk, feed

SHARE = 50  # an estimate takes a fiftieth of the images
FEWEST = 8  # images; with fewer the start takes most of the time


@dataclasses.dataclass(frozen=True)
class Question:
    """A question: results of a run, and what they are made of.

    ask: returns the results, by name. measures, curves: those that it asks for. control: whether it asks for the
    control of its measures. made_from: digest of everything that decides its results, for runs that go on in the same
    folder; "" to ask in each run.
    """

    name: str
    ask: Panel
    measures: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    control: bool = False
    made_from: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a run. measures: of one pass. questions: answered after it."""

    measures: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()

    @property
    def curves(self) -> tuple[str, ...]:
        """Masking curves of the questions."""
        return tuple(dict.fromkeys(name for question in self.questions for name in question.curves))

    def line(self, number: int, cost: str) -> str:
        """Return the step's line in the plan. cost: in words."""
        work = [f"measure {', '.join(self.measures)}"] if self.measures else []
        work += [f"masking curves {', '.join(self.curves)}"] if self.curves else []
        return f"  {number}. {'; '.join(work) or 'images that figures look at themselves'}: {cost}; then draw " + (
            ", ".join(question.name for question in self.questions) or "nothing yet"
        )


def steps(questions: Sequence[Question], measures: Mapping[str, Any]) -> list[Step]:
    """Return the steps that answer these questions, each question in the first step that can. measures: by name."""
    fit = {name: measure for name, measure in measures.items() if not isinstance(measure, UserError)}
    groups: dict[frozenset[Ablation], list[str]] = {frozenset(): []}  # measures by the masks that they share
    for name in dict.fromkeys(name for question in questions for name in question.measures if name in fit):
        groups.setdefault(_masks(fit[name]), []).append(name)
    passes = [group for group in groups.values() if group] or [[]]
    number = {name: index for index, group in enumerate(passes) for name in group}
    plain = [question for question in questions if not question.measures and not question.curves]
    curved = [question for question in questions if question.curves]
    waiting: list[list[Question]] = [[] for _ in passes]
    for question in questions:
        if question.measures and not question.curves:
            waiting[max((number.get(name, 0) for name in question.measures), default=0)].append(question)
    measuring = [Step(tuple(group), tuple(of)) for group, of in zip(passes, waiting, strict=True)]
    looking = 0 if passes[0] and _masks(fit[passes[0][0]]) else 1
    planned = [*measuring[:looking], Step((), tuple(plain)), *measuring[looking:], Step((), tuple(curved))]
    return [step for step in planned if step.measures or step.questions]


def lines(planned: Sequence[Step], material: Material) -> list[str]:
    """Return the steps in words, with estimated times. A collective."""
    data, model = material.data, material.model
    few = {split: sample(data.sizes[split], data.eval_batch_size) for split in ("val", "test")}
    walks = {split: material.walk(count, split) for split, count in few.items()}
    forward = forward_seconds(model, walks["test"])
    shown = [f"plan, with times estimated from {few['test']} of {data.sizes['test']} test images:"]
    for number, step in enumerate(planned, 1):
        if step.curves:
            cost = _cost_of_curves(material, step.curves, forward)
        elif step.measures:
            cost = _cost_of_measures(material, step.measures, walks)
        else:
            cost = "not estimated"
        shown.append(step.line(number, cost))
    return shown


def _cost_of_measures(material: Material, names: Sequence[str], walks: Mapping[str, Walk]) -> str:
    parts, stored = [], True
    for control, whose in ((False, ""), (True, " for the freshly initialised network")):
        if group := material.missing(names, control):
            model = material.twin() if control and material.twin else material.model
            one, stored = seconds_per_image(model, group, walks["test"], walks["val"]), False
            if one is not None:
                parts.append(f"about {duration(one * material.data.sizes['test'] / ranks.size())}{whose}")
    return "measured before" if stored else " and ".join(parts) or "not estimated"


def _cost_of_curves(material: Material, names: Sequence[str], forward: float) -> str:
    masking = material.masking
    assert masking is not None
    try:
        specs = [masking.named(name) for name in names]
    except UserError:  # the figure raises it
        return "not estimated"
    sizes = [material.data.sizes[split] for split in masking.splits]
    passes = sum(forwards(spec, material.layout, masking.steps, *sizes) for spec in specs)
    return f"about {duration(passes * forward / ranks.size())} at most, less what is known from before"


def sample(images: int, batch_size: int) -> int:
    """Return the number of images that an estimate takes, of ``images``."""
    return min(images, batch_size, max(FEWEST, images // SHARE))


def seconds_per_image(model: nn.Module, measures: Mapping[str, Measure], walk: Walk, select: Walk) -> float | None:
    """Return the time of measures per image, in seconds; None if all refuse. Resets the measures. A collective."""
    began = time.perf_counter()
    try:
        refused = feed(model, measures, walk, select)
        _wait(model)
    except UserError:
        return None
    finally:
        took = time.perf_counter() - began
        for measure in measures.values():
            measure.reset()
    return None if len(refused) == len(measures) else took / _images(walk())


def forward_seconds(model: nn.Module, walk: Walk) -> float:
    """Return the time of a forward pass per image, in seconds, in the second of two walks."""
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
    """Return the forward passes that a curve takes at most, without the scores of its heads. select, test: images."""
    units = make_units(spec.units, layout, spec.exclude_layers)
    length = spec.order.length(units, layout)
    length = length if steps is None else min(steps, length)
    tried = sum(len(units) - step for step in range(length)) if hasattr(spec.order, "search") else 0
    reported = (length + 1) * getattr(spec.order, "repeats", 1)
    return tried * select + reported * (test + (select if spec.order.searches else 0))


def _wait(model: nn.Module) -> None:
    """Wait until the device of the model has finished its work."""
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()


def _images(batches: Iterable[Batch]) -> int:
    """Return the number of images of this rank."""
    return max(1, sum(int(batch.valid.sum()) for batch in batches))


def _masks(measure: Measure) -> frozenset[Ablation]:
    needs: Collection[Any] = {*measure.needs, *(measure.select_needs or ())}
    return frozenset(need for need in needs if isinstance(need, Ablation))
