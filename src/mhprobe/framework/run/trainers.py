"""Trainer, callbacks and report of a run, made from the checked configuration.

A part whose section the command's configuration lacks is left out.
"""

from pathlib import Path

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.run import image_data, networks
from mhprobe.framework.run.composing import network
from mhprobe.framework.run.construct import construct, naming_keys
from mhprobe.framework.run.devices import build_lightning
from mhprobe.framework.run.jobs import rank_by_environment
from mhprobe.framework.run.resume import facts_of_run
from mhprobe.framework.run.schema import Config
from mhprobe.framework.run.wing import pages
from mhprobe.framework.training.checkpoints import (
    AtomicCheckpointIO,
    SameRun,
    SaveOnTerminate,
    SeedEachStep,
    StopAtOnce,
    best_and_last,
)
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.framework.training.ends import StopAtNonFinite
from mhprobe.framework.training.history import GateHistory, History
from mhprobe.framework.training.rates import LearningRates
from mhprobe.framework.training.screen import ShowsTraining
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.report.report import Report, Sample
from mhprobe.report.runs.facts import origin
from mhprobe.report.summary import show


def open_report(cfg: Config, folder: Path, layout: HeadLayout) -> Report:
    """Return a report that writes into ``folder`` and to the loggers."""
    report = make_report(cfg, folder, layout)
    open_loggers(cfg, report)
    return report


def open_loggers(cfg: Config, report: Report, trainer: L.Trainer | None = None) -> None:
    """Open the loggers of a run for its report, and for a trainer that was built without them.

    They write at once, some to a server: whoever can refuse the settings first opens them after that.
    """
    rank_zero_only.rank = rank_by_environment()  # type: ignore[attr-defined]  # loggers ask for it, and there may be no trainer yet
    loggers = []
    for name, part in cfg.logger.items():
        if part.get("job_type", "") is None:  # W&B groups runs by it
            part = {**part, "job_type": cfg.command}
        loggers.append(construct(part, f"logger.{name}", folder=report.folder))
    for logger in loggers:  # all of them are there
        logger.log_hyperparams(cfg.model_dump(include=cfg.model_fields_set))
    report.connect(loggers)
    if trainer is not None:
        trainer.loggers = loggers


def make_report(cfg: Config, folder: Path, layout: HeadLayout) -> Report:
    """Return a report that writes into ``folder`` alone, until ``open_loggers``."""
    report = Report(folder, layout, style=cfg.style)
    if cfg.resume is not None:  # a training
        report.network = cfg.name
    elif networks.weights_file(cfg):
        report.network = network(cfg.weights)
    elif cfg.backbone.get("checkpoint") is not None:
        report.network = Path(cfg.backbone["checkpoint"]).stem
    else:
        untrained = "" if cfg.backbone.get("pretrained") else "untrained "
        report.network = f"{untrained}{cfg.backbone.get('name', 'network')}"
    if rank_by_environment() == 0:
        report.origin = origin(cfg.command, folder)
    return report


def build_callbacks(
    cfg: Config,
    model: GatedClassifier,
    data: ImageData,
    report: Report,
    checkpoints: Path | None = None,
) -> list[L.Callback]:
    """Return the callbacks of a run, in the order in which Lightning calls them.

    checkpoints: their folder.
    """
    watching, probe = list[L.Callback](), cfg.probe
    if cfg.optim and cfg.measure and probe and (probe.every_n_epochs or probe.every_n_steps):
        built = networks.build_measures(cfg.measure, model.gates.layout, "measure")
        fit = {name: measure for name, measure in built.items() if isinstance(measure, Measure)}
        watching.append(
            History(fit, report, probe.every_n_epochs, probe.every_n_steps, probe.target)
        )
    for name, part in cfg.callback.items():
        watching.append(
            naming_keys(construct(part, f"callback.{name}"), f"callback.{name}")(report)
        )
    watching.append(ShowsTraining())
    if cfg.optim is None:
        return watching
    checkpoints = checkpoints or report.folder / "checkpoints"
    return [
        *best_and_last(
            checkpoints, cfg.checkpoint.every_n_steps if cfg.checkpoint else None
        ),  # before EveryEpoch
        *watching,
        *([LearningRates()] if cfg.logger else []),
        SeedEachStep(cfg.seed),
        SameRun(facts_of_run(cfg, model.description, data.images_of("train", "val"))),
        StopAtNonFinite(),
        *([] if cfg.optim.ema is None else [_build_average(cfg.optim.ema)]),
        SaveOnTerminate(checkpoints),
        *(
            [GateHistory(report, cfg.gates.keep, cfg.gates.threshold)]
            if networks.learns_gates(model)
            else []
        ),
    ]


def _build_average(decay: float) -> L.Callback:
    """Return the callback that averages the weights, which checkpoints then hold. UserError under older Lightning."""
    try:
        from mhprobe.framework.training.averaging import Average
    except ImportError as error:
        raise UserError(
            f"optim.ema: expected lightning 2.6 or newer, which can average weights, got "
            f"{L.__version__}. Update it, or leave optim.ema out."
        ) from error
    return Average(decay)


def build_trainer(cfg: Config, callbacks: list[L.Callback], report: Report) -> L.Trainer:
    """Return Lightning's trainer, with atomic checkpoints and without its samplers."""
    return build_lightning(
        cfg,
        callbacks=[*callbacks, StopAtOnce()],
        logger=report.loggers,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=report.folder,
        use_distributed_sampler=False,  # ours pads with flagged images
        num_sanity_val_steps=0,
    )


def test(trainer: L.Trainer, model: GatedClassifier, data: ImageData, report: Report) -> None:
    """Test the weights as they are, and answer the questions of the run at the end of the test."""
    by_network = (
        ", labelled by the whole network" if data.unlabelled and not model.features_only else ""
    )
    images = Sample(data.sizes["test"], "test")
    report.data, report.images = data.source.name, images._replace(words=f"{images}{by_network}")
    report.of = report.of or networks.name_subject(model, data, report)
    trainer.test(model, datamodule=data, verbose=False)
    if trainer.is_global_zero:
        # "test/accuracy" is always by labels
        metrics = {
            key.replace("accuracy", "agreement") if by_network else key: n
            for key, n in model.results.items()
        }
        judged = (
            {"test/right": int(model.right.sum())} if len(model.right) else {}
        )  # features are not judged
        report.add({})  # names what they are of
        report.add_metrics({**metrics, "test/images": data.sizes["test"], **judged})
        image_data.keep_outcomes(report.folder, model.right, data)


def finish(
    cfg: Config, trainer: L.Trainer, model: GatedClassifier, data: ImageData, report: Report
) -> None:
    """Finish the report and print where it is."""
    if not trainer.is_global_zero:
        return
    if (wing := pages()) is not None:
        wing.finish_run(
            report.folder,
            cfg.command,
            model,
            data,
            attention=cfg.maps is None,  # maps are of images of the user's choice
            live=cfg.report.live,
        )
    report.close()  # dashboards take the page along
    show(report.folder)
