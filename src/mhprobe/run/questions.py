"""The questions of a run, made from the checked configuration, and the one way to answer them."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.questions.ask import Answers
from mhprobe.questions.masking import Masking
from mhprobe.questions.material import Material
from mhprobe.questions.measured import agreement, cost, learned_gates, masking_curves, measured, on_another_data_set
from mhprobe.questions.plan import Question
from mhprobe.report.report import Report
from mhprobe.run import builders
from mhprobe.run.construct import construct, explained
from mhprobe.run.schema import Config, Paper
from mhprobe.run.schema import Masking as Curves
from mhprobe.training.classifier import GatedClassifier
from mhprobe.training.screen import ShowsTraining
from mhprobe.weights.twin import RandomTwin

log = logging.getLogger(__name__)

Asks = Callable[[Material, Report], Sequence[Question]]


def answer(
    cfg: Config, folder: Path, more: Asks = lambda material, report: (), estimate: bool = False, tested: bool = True
) -> Answers:
    """Test the weights as they are and answer the questions of the configuration.

    more: further questions. estimate: whether a plan with times is shown first. tested: False for questions that test
    the network themselves, in one process; one that has no answer then ends the run.
    """
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    answers = of_run(cfg, model, data, report, more, estimate)
    trainer = builders.trainer(cfg, [ShowsTraining(), answers], report)
    if tested:
        builders.test(trainer, model, data, report)
    else:
        model.to(builders.one_process(trainer))
        answers.find()
        answers.complain()
    builders.finish(cfg, trainer, model, data, report)
    return answers


def of_run(
    cfg: Config,
    model: GatedClassifier,
    data: ImageData,
    report: Report,
    more: Asks = lambda material, report: (),
    estimate: bool = False,
) -> Answers:
    """Return the questions that the configuration has sections for, and further ones, to be answered."""
    made = material(cfg, model, data)
    return Answers([*_usual(cfg, made), *more(made, report)], made, report, estimate)


def material(cfg: Config, model: GatedClassifier, data: ImageData) -> Material:
    """The model and its images, with the measures and the masking curves of the run, its paper, or its claims."""
    own = cfg.paper or cfg.evidence  # measures and masking curves of their own
    where = "paper.measure" if cfg.paper else "evidence.measure" if own else "measure"
    section, probe = own or cfg, cfg.probe
    parts = (section.measure or {}) if own or probe else {}
    built = builders.measures(parts, model.gates.layout, where)
    if cfg.optim is not None:  # found before the training, not after it
        for each in built.values():
            if isinstance(each, UserError):
                raise each
    curves, control = section.masking, bool(parts) and (cfg.control if own else probe and probe.control)
    return Material(
        model.gates.layout,
        model,
        data,
        measures=built,
        options=parts,
        masking=_masking(cfg, curves, model) if curves and curves.curves else None,
        twin=_control(model, cfg.seed, wanted=not own) if control else None,
        target=probe.target if probe else None,
        seed=cfg.seed,
        first=builders.is_first(),
        store=builders.store(cfg),
    )


def _usual(cfg: Config, material: Material) -> list[Question]:
    """The questions of probe, mask and train: each measure, what measures say together, a user's, gates, curves."""
    if cfg.paper or cfg.evidence or cfg.prune:
        return []
    names, asked = tuple(material.measures), []
    if names and cfg.probe:
        control = material.twin is not None
        asked += [Question("cost", functools.partial(cost, names=names))]
        asked += [Question(name, measured, (name,), control=control) for name in names]
        if (top_k := cfg.probe.top_k) is not None:
            asked.append(Question("agreement", functools.partial(agreement, top_k=top_k), names, control=control))
        if (also_on := cfg.probe.also_on) is not None:
            second = functools.partial(on_another_data_set, data=_second_data(also_on, material.data))
            asked.append(Question("second data set", second, names))
    for name, part in cfg.question.items():
        where = f"question.{name}"
        ask = explained(construct({**part, "_partial_": True}, where), where)
        asked.append(Question(name, ask, names, control=material.twin is not None))
    if cfg.optim is not None and builders.learns_gates(cast(Any, material.model)):
        rule = functools.partial(learned_gates, keep=cfg.gates.keep, threshold=cfg.gates.threshold)
        asked.append(Question("gates", explained(rule, "gates")))
    if material.masking is not None:
        asked.append(Question("masking_curves", masking_curves, curves=tuple(material.masking.specs)))
    return asked


def _control(model: GatedClassifier, seed: int, wanted: bool) -> RandomTwin | None:
    """The random twin; for pruned weights, which have none, a line instead, or the UserError if it was asked for."""
    try:
        return RandomTwin(cast(nn.Module, model.backbone), model.gates.layout, model.description, seed)
    except UserError as error:
        if wanted:
            raise
        log.info("no control: %s", error)
        return None


def panels(about: Paper) -> dict[str, Callable[..., Any]]:
    """Panels of a paper's figures, by figure, for figures that name one."""
    named = {f"paper.figures.{key}.panel": (key, part.panel) for key, part in about.figures.items() if part.panel}
    return {key: explained(construct(panel, where), where) for where, (key, panel) in named.items()}


def _masking(cfg: Config, settings: Curves, model: GatedClassifier) -> Masking:
    """The masking curves of ``settings``, checked before anything runs; of a paper, each when its figure is made."""
    layout = model.gates.layout
    specs: dict[str, CurveSpec | UserError] = {}
    for name, part in settings.curves.items():
        where, make = f"masking.curves.{name}", cast(type[CurveSpec], explained(CurveSpec, f"masking.curves.{name}"))
        try:
            order = construct(part.order, f"{where}.order")
            spec = make(name=name, **{**part.model_dump(), "order": order, "fill": part.fill or settings.fill})
            spec.check(layout)
            specs[name] = spec
        except UserError as error:
            specs[name] = unfit = UserError(str(error).replace(f"curve {name}: ", f"{where}: "))
            if not cfg.paper:
                raise unfit from error
    fit = [spec for spec in specs.values() if isinstance(spec, CurveSpec)]
    longest = max((len(make_units(spec.units, layout, spec.exclude_layers)) for spec in fit), default=0)
    if settings.step is not None and settings.step > longest:
        raise UserError(f"masking.step: the longest of the curves has {longest} steps, got {settings.step}.")
    options = settings.model_dump(include={"select_on", "steps", "step"})
    options |= {"join": settings.join and construct(settings.join, "masking.join"), "score": builders.score(cfg)}
    return Masking(specs, Path(cfg.cache_dir) / "orders", key="masking.curves", **options)


def _second_data(part: dict[str, Any], first: ImageData) -> ImageData:
    """The data set of ``probe.also_on``, prepared like the first."""
    second = builders.prepared(part, "probe.also_on")
    if second.class_names != first.class_names:
        raise UserError(
            f"probe.also_on: {second.source.name} has the classes {', '.join(second.class_names[:3])} ..., expected "
            f"those of {first.source.name}: {', '.join(first.class_names[:3])} ..."
        )
    if second.source.name == first.source.name:
        raise UserError(f"probe.also_on: expected another data set than data, got {second.source.name} twice.")
    second.spec = first.spec
    return second
