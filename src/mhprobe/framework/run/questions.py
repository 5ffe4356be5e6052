"""Questions of a run, made from the checked configuration, and the one way to answer them."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.questions.ask import Answers
from mhprobe.framework.questions.masking import Masking
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.measured import (
    agreement,
    cost,
    learned_gates,
    masking_curves,
    measured,
    on_another_data_set,
    second_to,
)
from mhprobe.framework.questions.plan import Question
from mhprobe.framework.run import image_data, networks, trainers
from mhprobe.framework.run.construct import construct, naming_keys
from mhprobe.framework.run.jobs import rank_by_environment
from mhprobe.framework.run.schema import Config, Paper
from mhprobe.framework.run.schema import Masking as Curves
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.framework.training.screen import ShowsTraining
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.masking.parts.units import make_units
from mhprobe.report.report import Report
from mhprobe.weights.twin import RandomTwin

log = logging.getLogger(__name__)

Asks = Callable[[Material, Report], Sequence[Question]]


def answer(
    cfg: Config,
    folder: Path,
    more: Asks = lambda material, report: (),
    estimate: bool = False,
    tested: bool = True,
) -> Answers:
    """Test the weights and answer the questions of the configuration.

    more: further questions. estimate: show a plan.

    tested: False for questions that test the network themselves, or not at all, and end the run
    without an answer.
    """
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.make_report(cfg, folder, model.gates.layout)
    answers = of_run(cfg, model, data, report, more, estimate)  # refuses what does not fit
    trainer = trainers.build_trainer(cfg, [ShowsTraining(), answers], report)
    if cfg.prune and not tested and trainer.world_size > 1:
        raise UserError(
            f"{cfg.command}: runs in one process, got {trainer.world_size}. To tune on several "
            "devices, prune with tune_epochs=0 and then train with weights=<pruned.safetensors>."
        )
    report.begin(networks.name_subject(model, data, report))  # decodes the images
    trainers.open_loggers(cfg, report, trainer)
    if tested:
        trainers.test(trainer, model, data, report)
    else:
        report.data = data.source.name
        model.to(trainer.strategy.root_device)
        answers.find()
        answers.complain()
    trainers.finish(cfg, trainer, model, data, report)
    return answers


def of_run(
    cfg: Config,
    model: GatedClassifier,
    data: ImageData,
    report: Report,
    more: Asks = lambda material, report: (),
    estimate: bool = False,
) -> Answers:
    """Return the questions of the configuration's sections, and further ones, to be answered."""
    subject = material(cfg, model, data)
    return Answers([*_usual(cfg, subject), *more(subject, report)], subject, report, estimate)


def material(cfg: Config, model: GatedClassifier, data: ImageData) -> Material:
    """Return model, images, measures and curves.

    UserError for an unfit measure, unless of a paper or claim.
    """
    study = cfg.paper or cfg.evidence  # measures and masking curves of their own
    curves = (study or cfg).masking
    if curves and not curves.curves:
        curves = None
    where, parts = _measures(cfg)
    if (parts or cfg.prune or curves) and not model.gates.layout.sites:
        raise UserError(
            "weights: this network has no heads left. To take its neurons: gates.units=[neuron]."
        )
    built = networks.build_measures(parts, model.gates.layout, where)
    if not study:
        _refuse_unfit(built, where)
    return Material(
        model.gates.layout,
        model,
        data,
        measures=built,
        options=parts,
        masking=_masking(cfg, curves, model) if curves else None,
        twin=_control(model, cfg.seed, wanted=not study) if parts and _controlled(cfg) else None,
        target=cfg.probe.target if cfg.probe else None,
        seed=cfg.seed,
        first=rank_by_environment() == 0,
        store=networks.kept_measurements(cfg),
    )


def _measures(cfg: Config) -> tuple[str, Mapping[str, Any]]:
    """Return the key of the measures of a run, and the measures: of a paper, of claims, or of a probe."""
    if cfg.paper:
        return "paper.measure", cfg.paper.measure or {}
    if cfg.evidence:
        return "evidence.measure", cfg.evidence.measure or {}
    return "measure", (cfg.measure or {}) if cfg.probe else {}


def _controlled(cfg: Config) -> bool:
    """Return True if a run is to have a random twin beside the network."""
    if cfg.paper or cfg.evidence:
        return bool(cfg.control)
    return bool(cfg.probe and cfg.probe.control)


def _refuse_unfit(built: Mapping[str, Any], where: str) -> None:
    """UserError for the first of the measures that do not fit, with how to go on without them."""
    unfit = {name: error for name, error in built.items() if isinstance(error, UserError)}
    if unfit:
        without = " ".join(f"~{where}.{name}" for name in unfit)
        raise UserError(f"{next(iter(unfit.values()))} To go on without: {without}.")


def _usual(cfg: Config, material: Material) -> list[Question]:
    """Return the questions of probe, mask and train: measures, their agreement, a user's, gates, masking curves."""
    if cfg.paper or cfg.evidence or cfg.prune:
        return []
    names, questions, control = (
        tuple(material.measures),
        list[Question](),
        material.twin is not None,
    )
    if names and cfg.probe:
        questions += [Question("cost", functools.partial(cost, names=names))]
        questions += [Question(name, measured, (name,), control=control) for name in names]
        if (top_k := cfg.probe.top_k) is not None:
            questions.append(
                Question(
                    "agreement", functools.partial(agreement, top_k=top_k), names, control=control
                )
            )
        if (also_on := cfg.probe.also_on) is not None:
            other = second_to(
                material.data, image_data.prepare(also_on, "probe.also_on"), "probe.also_on"
            )
            if other.source.name == material.data.source.name:
                raise UserError(
                    f"probe.also_on: expected another data set than data, got {other.source.name} "
                    "twice."
                )
            second = functools.partial(on_another_data_set, data=other)
            questions.append(Question("second data set", second, names))
    for name, part in cfg.question.items():
        where = f"question.{name}"
        ask = naming_keys(construct({**part, "_partial_": True}, where), where)
        questions.append(Question(name, ask, names, control=control))
    if cfg.optim is not None and networks.learns_gates(cast(Any, material.model)):
        rule = functools.partial(learned_gates, keep=cfg.gates.keep, threshold=cfg.gates.threshold)
        questions.append(Question("gates", naming_keys(rule, "gates")))
    if material.masking is not None:
        questions.append(
            Question("masking_curves", masking_curves, curves=tuple(material.masking.specs))
        )
    return questions


def _control(model: GatedClassifier, seed: int, wanted: bool) -> RandomTwin | None:
    """Return the random twin; pruned weights have none: UserError if it is wanted, else a line in the log."""
    try:
        return RandomTwin(model.backbone, model.gates.layout, model.description, seed)
    except UserError as error:
        if wanted:
            raise
        log.info("no control: %s", error)
        return None


def panels(about: Paper) -> dict[str, Callable[..., Any]]:
    """Return the panels of a paper's figures, by figure, for figures that name one."""
    named = {
        key: (figure.panel, f"paper.figures.{key}.panel")
        for key, figure in about.figures.items()
        if figure.panel
    }
    return {
        key: naming_keys(construct(panel, where), where) for key, (panel, where) in named.items()
    }


def _masking(cfg: Config, settings: Curves, model: GatedClassifier) -> Masking:
    """Return the masking curves of ``settings``.

    UserError for one that does not fit, unless it is of a paper.
    """
    layout = model.gates.layout
    specs: dict[str, CurveSpec | UserError] = {}
    for name, part in settings.curves.items():
        where, make = (
            f"masking.curves.{name}",
            cast(type[CurveSpec], naming_keys(CurveSpec, f"masking.curves.{name}")),
        )
        try:
            order = construct(part.order, f"{where}.order")
            spec = make(
                name=name,
                **{**part.model_dump(), "order": order, "fill": part.fill or settings.fill},
            )
            spec.check(layout)
            specs[name] = spec
        except UserError as error:
            specs[name] = unfit = UserError(str(error).replace(f"curve {name}: ", f"{where}: "))
            if not cfg.paper:
                raise unfit from error
    fit = [spec for spec in specs.values() if isinstance(spec, CurveSpec)]
    study = "paper." if cfg.paper else "evidence." if cfg.evidence else ""
    asked = {option: getattr(settings, option) for option in ("step", "steps")}
    if fit and any(number is not None for number in asked.values()):
        _refuse_beyond(f"{study}masking", asked, fit, layout)
    options = settings.model_dump(include={"select_on", "steps", "step"})
    options |= {
        "join": settings.join and construct(settings.join, "masking.join"),
        "score": networks.build_score(cfg),
    }
    return Masking(specs, Path(cfg.cache_dir) / "orders", key="masking.curves", **options)


def _refuse_beyond(
    section: str, asked: Mapping[str, int | None], specs: Sequence[CurveSpec], layout: Any
) -> None:
    """UserError for a step that no curve has, or more steps; a line in the log for a curve without the one step.

    asked: the settings "step", the one point that is reported, and "steps", how far curves go.
    """
    lengths = {
        spec.name: spec.order.length(make_units(spec.units, layout, spec.exclude_layers), layout)
        for spec in specs
    }
    longest = max(lengths.values())
    for option, number in asked.items():
        if number is not None and number > longest:
            raise UserError(
                f"{section}.{option}: steps 0 to {longest} exist, got {number}. Give one of these."
            )
    step = asked["step"]
    if step is None or rank_by_environment() != 0:
        return
    for name, length in lengths.items():
        if step > length:
            log.warning(
                "%s.step: %s ends at step %d, so step %d leaves it out.",
                section,
                name,
                length,
                step,
            )
