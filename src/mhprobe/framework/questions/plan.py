"""Plan of a run: the order in which questions are answered, with times extrapolated from a few images.

Measures that only record come first, in one pass, then questions that look at images, measures that
mask heads, curves.
"""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material, Measurements, Panel
from mhprobe.heads import Ablation, HeadLayout
from mhprobe.io.progress import duration, progress
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import feed, record_bytes, said

SHARE = 50  # an estimate takes a fiftieth of the images
FEWEST = 8  # images; with fewer the start takes most of the time


@dataclasses.dataclass(frozen=True)
class Question:
    """A question: results of a run, and what they are made of.

    ask: returns the results, by name. measures, curves: those that it asks for. control: whether it
    asks for the control of its measures. made_from: digest of everything that decides its results,
    for runs that go on in the same folder; "" to ask in each run.
    """

    name: str
    ask: Panel
    measures: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    control: bool = False
    made_from: str = ""


@dataclasses.dataclass(frozen=True)
class PlannedStep:
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
        return (
            f"  {number}. {'; '.join(work) or 'images that figures look at themselves'}: {cost}; "
            "then draw "
            + (", ".join(question.name for question in self.questions) or "nothing yet")
        )


def planned_steps(questions: Sequence[Question], measures: Mapping[str, Any]) -> list[PlannedStep]:
    """Return the steps that answer these questions, each question in the first step that can.

    measures: by name.
    """
    fit = {
        name: measure for name, measure in measures.items() if not isinstance(measure, UserError)
    }
    asked = dict.fromkeys(name for question in questions for name in question.measures)
    passes = _passes([name for name in asked if name in fit], fit)
    curved = tuple(question for question in questions if question.curves)
    rest = [question for question in questions if not question.curves]
    plain = tuple(question for question in rest if not question.measures)
    measuring = _measuring(passes, [question for question in rest if question.measures])
    masked_first = bool(passes[0]) and bool(masks_of(fit[passes[0][0]]))
    looking = 0 if masked_first else 1
    planned = [
        *measuring[:looking],
        PlannedStep((), plain),
        *measuring[looking:],
        PlannedStep((), curved),
    ]
    return [step for step in planned if step.measures or step.questions]


def _measuring(passes: Sequence[Sequence[str]], questions: Sequence[Question]) -> list[PlannedStep]:
    """A step for each pass, with the questions whose last measure it finds."""
    number = {name: index for index, group in enumerate(passes) for name in group}
    answered: list[list[Question]] = [[] for _ in passes]
    for question in questions:
        last = max(number.get(name, 0) for name in question.measures)
        answered[last].append(question)
    return [
        PlannedStep(tuple(group), tuple(of)) for group, of in zip(passes, answered, strict=True)
    ]


def _passes(names: Sequence[str], measures: Mapping[str, Any]) -> list[list[str]]:
    """Return measures by the masks that they share, those without masks first; one empty pass for none."""
    groups: dict[frozenset[Ablation], list[str]] = {frozenset(): []}
    for name in names:
        groups.setdefault(masks_of(measures[name]), []).append(name)
    return [group for group in groups.values() if group] or [[]]


def plan_in_words(planned: Sequence[PlannedStep], material: Material) -> list[str]:
    """Return the steps in words, with estimated times. A collective."""
    images, forward = material.data.sizes["test"], forward_seconds(material)
    few = sample(images, material.data.eval_batch_size)
    shown = [f"plan, with times estimated from {few} of {images} test images:"]
    for number, step in enumerate(planned, 1):
        if step.curves:
            cost = _cost_of_curves(material, step.curves, forward)
        elif step.measures:
            cost = _cost_of_measures(material, step.measures)
        else:
            with progress(
                "estimating their time", len(step.questions), "figures", material.first
            ) as done:
                costs = [(one.name, _cost(material, one.ask), done(1)) for one in step.questions]
            cost = ", ".join(f"{name} {cost}" for name, cost, _ in costs)
        shown.append(step.line(number, cost))
    return shown


def _cost(material: Material, ask: Callable[[Material], Any]) -> str:
    """Return in words the time of a question, by few images of those that it asks for."""
    few, words = Glimpse(material.data), "about"
    # what it learns of few images must not be taken for what all of them say
    apart = dataclasses.replace(
        material, data=few, first=False, store=None, measurements=Measurements()
    )
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):  # of so few images
            if ranks.together(lambda: ask(apart)) is None:
                return "not estimated"
    except ranks.LeftAlone:
        raise
    except (UserError, RuntimeError):  # perhaps of so few images
        words = "at least"
    seconds = few.seconds_of_all(time.perf_counter() - began)
    return "not estimated" if seconds is None else f"{words} {duration(seconds)}"


def _cost_of_measures(material: Material, names: Sequence[str]) -> str:
    parts = []
    for network in (material.trained, material.untrained_network):
        group = {} if network is None else network.missing(names)
        if network is not None and group:
            show = functools.partial(_shown, model=network.model, measures=group)
            whose = " for the freshly initialised network" if network.name else ""
            parts.append(_cost(material, show) + _room(material, network.model, group) + whose)
    return " and ".join(parts) or "measured before"


def _room(material: Material, model: nn.Module, measures: Mapping[str, Measure]) -> str:
    """Return in words the memory that the largest record takes; "" if it is small."""
    batch = min(material.data.eval_batch_size, material.data.sizes["test"])
    return said(record_bytes(model, measures.values(), batch))


def _shown(material: Material, model: nn.Module, measures: Mapping[str, Measure]) -> bool | None:
    """Show the images to the measures, which forget them. None if all refuse."""
    try:
        refused = feed(model, measures, material.walk(), material.walk(split="val"))
    finally:
        for measure in measures.values():
            measure.reset()
    return None if len(refused) == len(measures) else True


def _cost_of_curves(material: Material, names: Sequence[str], forward: float) -> str:
    try:
        masking = material.described
        specs = [masking.named(name) for name in names]
    except UserError:  # the figure raises it
        return "not estimated"
    sizes = [material.data.sizes[split] for split in masking.splits]
    passes = sum(forwards(spec, material.layout, masking.steps, *sizes) for spec in specs)
    return f"about {duration(passes * forward)} at most, less what is known from before"


class Glimpse(ImageData):
    """Images for an estimate: few of those that a question asks for, and the time of looking at them."""

    def __init__(self, whole: ImageData) -> None:
        vars(self).update(vars(whole))
        self.walks: list[
            tuple[float, float]
        ] = []  # seconds, and images wanted for over images shown
        self.times, self.until = (
            0.0,
            0.0,
        )  # of images of one batch, wanted for over shown; the end of the last walk

    def batches(
        self, split: str, device: Any = "cpu", images: Tensor | int | None = None
    ) -> Iterator[Batch]:
        size, began = self.sizes[split], time.perf_counter()
        wanted = (
            len(images)
            if isinstance(images, Tensor)
            else size
            if images is None
            else min(images, size)
        )
        few = sample(wanted, self.eval_batch_size)
        yield from super().batches(
            split, device, images[:few] if isinstance(images, Tensor) else few
        )
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        if began >= self.until:  # not beside another walk
            self.until = time.perf_counter()
            self.walks.append((self.until - began, wanted / max(1, few)))

    def chosen(self, split: str, images: int | Sequence[int]) -> Sequence[int]:
        positions = super().chosen(split, images)
        few = sample(len(positions), self.eval_batch_size) if len(positions) > FEWEST else 1
        self.times = max(self.times, len(positions) / few)
        return positions[:few]

    def seconds_of_all(self, seconds: float) -> float | None:
        """Return the time with all images of a question that took so many ``seconds``; None if it looked at none."""
        if not self.walks and not self.times:
            return None
        inside = sum(took for took, _ in self.walks)
        return sum(took * times for took, times in self.walks) + max(1.0, self.times) * (
            seconds - inside
        )


def sample(images: int, batch_size: int) -> int:
    """Return the number of images that an estimate takes, of ``images``."""
    return min(images, batch_size, max(FEWEST, images // SHARE))


def forward_seconds(material: Material) -> float:
    """Return the time of a forward pass per test image, in seconds, in the second of two walks."""
    few, model = Glimpse(material.data), material.model
    with torch.inference_mode():
        for _ in range(2):
            for batch in few.batches("test", model.device):
                model(batch.images)
    seconds, times = few.walks[-1]
    return seconds * times / few.sizes["test"]


def forwards(spec: CurveSpec, layout: HeadLayout, steps: int | None, select: int, test: int) -> int:
    """Return the forward passes that a curve takes at most, without the scores of its heads. select, test: images."""
    units = make_units(spec.units, layout, spec.exclude_layers)
    length = spec.order.length(units, layout)
    length = length if steps is None else min(steps, length)
    tried = sum(len(units) - step for step in range(length)) if hasattr(spec.order, "search") else 0
    reported = (length + 1) * getattr(spec.order, "repeats", 1)
    return tried * select + reported * (test + (select if spec.order.searches else 0))


def masks_of(measure: Measure) -> frozenset[Ablation]:
    """Return the masks under which a measure, or its choice, needs the model."""
    needs: Collection[Any] = {*measure.needs, *(measure.select_needs or ())}
    return frozenset(need for need in needs if isinstance(need, Ablation))
