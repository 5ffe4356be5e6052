"""Parts of a run, made from the checked configuration; commands put them together.

A part whose section the command's configuration lacks is left out.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import (
    MisconfigurationException as FabricMisconfiguration,
)
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from timm.models import save_for_hf
from torch import nn

from mhprobe.backbones import build, channels_of, gives_features
from mhprobe.backbones.parts.timm_models import note, registered
from mhprobe.data.base import SPLITS, ImageData, InputSpec
from mhprobe.data.source import other_classes
from mhprobe.errors import UserError, refuse_misfits
from mhprobe.framework.run.construct import construct, explained, keyed, refuse_plain
from mhprobe.framework.run.jobs import rank
from mhprobe.framework.run.quiet import quiet
from mhprobe.framework.run.resume import facts
from mhprobe.framework.run.schema import Config, absent_data, refuse_without_classifier
from mhprobe.framework.run.sections import network
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
from mhprobe.io.head_tables import read_kept
from mhprobe.io.tensors import digest, write_outcomes
from mhprobe.measures.base import Measure, fitted
from mhprobe.report.report import Report, Sample
from mhprobe.report.runs.facts import origin
from mhprobe.report.summary import show
from mhprobe.scoring.base import Score, score_for
from mhprobe.weights.checkpoint import DESCRIBES, load_checkpoint, load_weights, save_weights
from mhprobe.weights.description import FREE, OURS, portable
from mhprobe.weights.foreign import load_foreign
from mhprobe.weights.normalisation import normalise_by, seen_by, tell
from mhprobe.weights.teacher import Recalled, Teacher

log = logging.getLogger(__name__)

# of backbone, to read weights of another training and to feed them
OF_FILE = ("checkpoint", "prefix", "leave_out", "mean", "std")


def data(cfg: Config) -> ImageData:
    """Return the images, decoded and split.

    UserError for a file that the configuration names and that is missing.
    """
    quiet()
    saved = "a .safetensors with its .json, or a .ckpt of mhprobe.train"
    named = {  # files read after the images, which may have to be downloaded first
        "weights": (weights_file(cfg), saved),
        "backbone.checkpoint": (cfg.backbone.get("checkpoint"), "weights of any training"),
        "optim.teacher": (cfg.optim and cfg.optim.teacher, saved),
        "gates.mask": (cfg.gates.mask, "a table of heads with a column kept"),
    }
    missing = [
        f"{key}: no file {file}. Give {what}."
        for key, (file, what) in named.items()
        if file is not None and not Path(str(file)).is_file()
    ]
    if missing:  # data beside them, so that both can be mended at once
        sets: dict[str, Any] = {"data": cfg.data, "probe.also_on": cfg.probe and cfg.probe.also_on}
        sets["evidence.second"] = cfg.evidence and cfg.evidence.second
        raise UserError(" ".join([*missing, *absent_data(sets)]))
    if cfg.data.get("batch_size") != "auto":
        return prepared(cfg.data, "data")
    if cfg.command != "train":
        raise UserError(
            f"data.batch_size=auto: is for mhprobe.train; give mhprobe.{cfg.command} a number."
        )
    return prepared({**cfg.data, "batch_size": 1}, "data")  # until run.batch_size has found it


def classifier(cfg: Config, data: ImageData) -> GatedClassifier:
    """Return the network of ``weights``, or a new one, with gates.

    Sets the input size of ``data``.
    """
    L.seed_everything(cfg.seed, workers=True, verbose=False)  # new weights are drawn here
    backbone, description = (
        _loaded(cfg, weights, data) if (weights := weights_file(cfg)) else _fresh(cfg, data)
    )
    channels, there = channels_of(backbone), data.channels
    if channels != there and (channels, there) != (1, 3):
        raise UserError(
            f"backbone.in_chans: images have {there} channels, expected as many, or 1 for colours in "
            f"grey, got {channels}. Take a network of {there}; class folders of .npy arrays (height, "
            "width, channels) have any number of channels."
        )
    spec, reading = seen_by(backbone, None, None, "backbone")
    note(backbone, reading)
    data.spec = InputSpec(**spec)
    if features := gives_features(backbone):
        refuse_without_classifier(cfg.command)
    if cfg.score:  # refused before anything is computed
        section = cfg.prune or cfg.masking
        chooses = SPLITS[section.select_on] if section else "test"
        fewest = min(
            [data.sizes["test"], data.sizes[chooses], *([cfg.prune.images] if cfg.prune else [])]
        )
        bank = data.sizes["train"] + (data.sizes["val"] if cfg.prune and chooses != "val" else 0)
        score_for(score(cfg), "score", not data.unlabelled, features, fewest, bank)
    if data.unlabelled and not features:
        _label(cfg, data, backbone, description["class_names"])
    description = {**description, "input": {key: list(value) for key, value in spec.items()}}
    gates = cfg.gates
    with keyed({"gates": gates.model_dump(), "optim": cfg.optim.model_dump() if cfg.optim else {}}):
        model = GatedClassifier(
            backbone,
            description,
            make_gates=explained(
                construct(gates.relaxation, "gates.relaxation"), "gates.relaxation"
            ),
            units=gates.units,
            penalty=construct(gates.penalty, "gates.penalty") if gates.penalty else None,
            gate_lr=gates.lr,
            frozen=gates.frozen,
            **optim(cfg, data),
        )
    if rank() == 0 and any(
        images.startswith("test:") for images in description.get("chosen_by", ())
    ):
        log.warning(
            "weights: test images chose the heads of this network: its numbers on test images are "
            "too good."
        )
    if cfg.command == "train" and learns_gates(model) and "neuron" in model.gates.layout.kinds:
        raise UserError(
            "gates.units: the history of learned gates is of heads, expected gates.units=[head]."
        )
    if gates.mask:
        with keyed(gates.model_dump(), "gates"):
            model.gates.close(~read_kept(gates.mask, model.gates.layout))
    if cfg.compile:
        backbone.compile()
    return model


def score(cfg: Config) -> type[Score] | None:
    """Return the score of an image; None for the one that the data and the model allow."""
    return construct(cfg.score, "score").func if cfg.score else None


def _label(cfg: Config, data: ImageData, backbone: nn.Module, class_names: Sequence[str]) -> None:
    """Label the images by the predictions of the whole network."""
    if cfg.command == "train":
        data.refuse_unlabelled("training")
    device = _lightning(
        cfg, logger=False, enable_checkpointing=False
    ).strategy.root_device  # each rank has its own
    data.label_by(backbone.to(device).eval(), class_names, device)
    if rank() == 0:
        print(
            f"data: {data.source.name} has no labels. Accuracy is the share of images whose "
            "largest logit is where the "
            f"whole network has it, loss the cross-entropy of that class."
        )


def optim(cfg: Config, data: ImageData) -> dict[str, Any]:
    """Return the options of ``optim`` for the classifier, with the teacher loaded for the input of ``data``."""
    if cfg.optim is None:
        return {}
    settings = cfg.optim.model_dump(exclude={"ema", "teacher_sees"})
    if (path := cfg.optim.teacher) is None:
        return settings
    of, whole = (path, data.class_names, data.input_spec), cfg.optim.teacher_sees == "whole"
    try:
        return {**settings, "teacher": Recalled(*of, data.cache_dir) if whole else Teacher(*of)}
    except UserError as error:
        raise UserError(f"optim.teacher: {str(error).removeprefix('teacher: ')}") from None


def weights_file(cfg: Config) -> str | None:
    """Return the file of the network's weights; None for a new network."""
    return None if cfg.weights == "random" else cfg.weights


def report(cfg: Config, folder: Path, layout: HeadLayout) -> Report:
    """Return a report that writes into ``folder`` and to the loggers."""
    rank_zero_only.rank = rank()  # type: ignore[attr-defined]  # loggers ask for it, and there is no trainer yet
    loggers = []
    for name, part in cfg.logger.items():
        if part.get("job_type", "") is None:  # W&B groups runs by it
            part = {**part, "job_type": cfg.command}
        loggers.append(construct(part, f"logger.{name}", folder=folder))
        loggers[-1].log_hyperparams(cfg.model_dump(include=cfg.model_fields_set))
    report = Report(folder, layout, loggers, cfg.style)
    if cfg.resume is not None:  # a training
        report.network = cfg.name
    elif weights_file(cfg):
        report.network = network(cfg.weights)
    elif cfg.backbone.get("checkpoint") is not None:
        report.network = Path(cfg.backbone["checkpoint"]).stem
    else:
        untrained = "" if cfg.backbone.get("pretrained") else "untrained "
        report.network = f"{untrained}{cfg.backbone.get('name', 'network')}"
    if rank() == 0:
        report.origin = origin(cfg.command, folder)
    return report


def subject(model: GatedClassifier, data: ImageData, report: Report) -> dict[str, str]:
    """Return what results are of: the names of the network, with its gates, and of the images, by their digests."""
    gates = model.gates.effective()
    tensors = {
        **model.backbone.state_dict(),
        **({} if bool((gates == 1).all()) else {"gates": gates}),
    }
    return {digest(tensors)[:8]: report.network, data.fingerprint[:8]: data.source.name}


def callbacks(
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
        built = measures(cfg.measure, model.gates.layout, "measure")
        fit = {name: measure for name, measure in built.items() if isinstance(measure, Measure)}
        watching.append(
            History(fit, report, probe.every_n_epochs, probe.every_n_steps, probe.target)
        )
    for name, part in cfg.callback.items():
        watching.append(explained(construct(part, f"callback.{name}"), f"callback.{name}")(report))
    watching.append(ShowsTraining())
    if cfg.optim is None:
        return watching
    checkpoints = checkpoints or report.folder / "checkpoints"
    return [
        *best_and_last(
            checkpoints, cfg.checkpoint.every_n_steps if cfg.checkpoint else None
        ),  # before EveryEpoch
        *watching,
        *([LearningRates()] if report.loggers else []),
        SeedEachStep(cfg.seed),
        SameRun(facts(cfg, model.description, data.images_of("train", "val"))),
        StopAtNonFinite(),
        *([] if cfg.optim.ema is None else [_average(cfg.optim.ema)]),
        SaveOnTerminate(checkpoints),
        *(
            [GateHistory(report, cfg.gates.keep, cfg.gates.threshold)]
            if learns_gates(model)
            else []
        ),
    ]


def _average(decay: float) -> L.Callback:
    """Return the callback that averages the weights, which checkpoints then hold. UserError under older Lightning."""
    try:
        from mhprobe.framework.training.averaging import Average
    except ImportError as error:
        raise UserError(
            f"optim.ema: expected lightning 2.6 or newer, which can average weights, got "
            f"{L.__version__}. Update it, or leave optim.ema out."
        ) from error
    return Average(decay)


def trainer(cfg: Config, callbacks: list[L.Callback], report: Report) -> L.Trainer:
    """Return Lightning's trainer, with atomic checkpoints and without its samplers."""
    return _lightning(
        cfg,
        callbacks=[*callbacks, StopAtOnce()],
        logger=report.loggers,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=report.folder,
        use_distributed_sampler=False,  # ours pads with flagged images
        num_sanity_val_steps=0,
    )


def _lightning(cfg: Config, **more: Any) -> L.Trainer:
    """Return a trainer with the settings of ``trainer``."""
    settings = {**cfg.trainer.model_dump(), "precision": precision(cfg)}
    try:
        return L.Trainer(**settings, **more, enable_model_summary=False)
    except (
        MisconfigurationException,
        FabricMisconfiguration,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error


def precision(cfg: Config) -> str:
    """Return the precision of training; for "auto" bf16 where the hardware multiplies it faster than float32."""
    if cfg.trainer.precision != "auto":
        return cfg.trainer.precision
    accelerator, faster = cfg.trainer.accelerator, False
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        faster = torch.cuda.is_bf16_supported(including_emulation=False)
    elif accelerator in ("auto", "cpu"):
        faster = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bf16-mixed" if faster else "32-true"


def best(model: GatedClassifier, checkpoints: Path) -> None:
    """Load the weights of the epoch that was best on validation; with a penalty on open heads the last ones stay."""
    if model.penalty is None and not (file := checkpoints / "best.ckpt").is_file():
        log.warning(
            "best.ckpt is gone, or the training ended before its first validation: the last "
            "weights are taken"
        )
    elif model.penalty is None:
        chosen = load_checkpoint(file)
        model.load_state_dict(chosen["state_dict"])
        model.results = chosen.get("results", {})


def test(trainer: L.Trainer, model: GatedClassifier, data: ImageData, report: Report) -> None:
    """Test the weights as they are, and answer the questions of the run at the end of the test."""
    by_network = (
        ", labelled by the whole network" if data.unlabelled and not model.features_only else ""
    )
    images = Sample(data.sizes["test"], "test")
    report.data, report.images = data.source.name, images._replace(words=f"{images}{by_network}")
    report.of = report.of or subject(model, data, report)
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
        keep_outcomes(report.folder, model.right, data)


def keep_outcomes(folder: Path, right: torch.Tensor, data: ImageData) -> None:
    """Write the right test images, (N,) bool, for ``mhprobe.compare``; nothing for images without labels."""
    if len(right) and not data.unlabelled:
        write_outcomes(
            folder, right, torch.from_numpy(data.splits["test"].positions), data.images_of("test")
        )


def save(
    cfg: Config, trainer: L.Trainer, model: GatedClassifier, data: ImageData, folder: Path
) -> None:
    """Write the weights as plain timm keys: ``model.safetensors`` and the JSON that rebuilds the model."""
    if not trainer.is_global_zero:
        return
    about: dict[str, Any] = {
        "by": f"mhprobe.{cfg.command}",
        "name": cfg.name,
        "data": data.fingerprint,
    }
    about |= {"epochs": trainer.current_epoch, "seed": cfg.seed}
    about |= {} if data.set_aside is None else {"set_aside": data.set_aside}
    description = {**model.description, "made": {**about, **model.results}}
    if learns_gates(model):
        description["gates_kept"] = (
            model.gates.kept(cfg.gates.keep, cfg.gates.threshold).long().tolist()
        )
    save_weights(model.backbone, folder / "model.safetensors", description)


def save_backbone(cfg: Config, folder: Path) -> Path:
    """Write the pretrained backbone with its own classifier for timm's ``local-dir:``; return the folder."""
    part = {key: value for key, value in cfg.backbone.items() if key not in ("_target_", *OF_FILE)}
    described = portable(registered(part))
    backbone = build(**{**part, "num_classes": None})
    place = folder / "".join(
        letter if letter.isalnum() or letter in "._-" else "_" for letter in part["name"]
    )
    settings = {key: value for key, value in described.items() if key not in OURS}
    save_for_hf(backbone, str(place), model_args=settings, safe_serialization=True)
    return place


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


def store(cfg: Config) -> Path:
    """Return the folder of kept measurements, shared by runs."""
    return Path(cfg.cache_dir) / "measured"


def learns_gates(model: GatedClassifier) -> bool:
    return any(gate.requires_grad for gate in model.gates.parameters())


def _loaded(cfg: Config, weights: str, data: ImageData) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network of the file ``weights`` and its description, with what of ``backbone`` may differ."""
    if cfg.backbone.get("checkpoint") is not None:
        raise UserError(
            f"backbone.checkpoint: weights={weights} are given as well; give one of the two."
        )
    changes = {
        key: value for key, value in cfg.backbone.items() if key in FREE and value is not None
    }
    with keyed(changes, "backbone"):
        backbone, loaded = load_weights(weights, **changes)
    if cfg.backbone.get("num_classes") == 0 and loaded["class_names"]:
        cast(Any, backbone).reset_classifier(0)
        loaded["class_names"] = []
    theirs = loaded["class_names"]
    if theirs and not data.unlabelled and (differ := other_classes(theirs, data.class_names)):
        raise UserError(
            f"weights: {weights} has {differ} The file was trained on data={loaded['data']}."
        )
    described = {key: loaded[key] for key in DESCRIBES if key in loaded}
    return backbone, {
        **described,
        "data": data.source.name,
    } if cfg.command == "train" else described


def _fresh(cfg: Config, data: ImageData) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network of ``backbone`` and its description."""
    part = {
        key: value for key, value in cfg.backbone.items() if key not in (*OF_FILE, "num_classes")
    }
    trains, checkpoint = cfg.optim is not None, cfg.backbone.get("checkpoint")
    reading: dict[str, Any] = {key: cfg.backbone.get(key) for key in ("prefix", "leave_out")}
    reading = {key: value for key, value in reading.items() if value not in (None, False)}
    if reading and checkpoint is None:
        raise UserError(
            f"backbone.{next(iter(reading))}: is for reading backbone.checkpoint=<file>, and none is "
            "given. Leave it out."
        )
    if checkpoint is not None and part.get("pretrained"):
        raise UserError(
            "backbone.checkpoint: expected backbone.pretrained=false beside it; weights come from "
            "one."
        )
    if "name" not in part:
        raise UserError(
            "backbone: no name, expected that of a model, e.g. backbone=vit or backbone.name=<of "
            "timm>."
        )
    features = cfg.backbone.get("num_classes") == 0
    # None: as many as its own classifier has
    classes = 0 if features else None if data.unlabelled else data.num_classes
    with keyed(cfg.backbone, "backbone"):
        backbone = construct({**part, "num_classes": classes}, "backbone")
    if checkpoint is not None:
        with keyed(reading, "backbone"):
            refuse_misfits(load_foreign, reading, "backbone")
        load_foreign(
            backbone, str(checkpoint), "backbone.checkpoint", new_classifier=trains, **reading
        )
    numbers = {key: cfg.backbone.get(key) for key in ("mean", "std")}
    normalise_by(backbone, **numbers, where="backbone.checkpoint")
    if checkpoint is not None:
        given = [key for key, value in numbers.items() if value is not None]
        tell(backbone, part["name"], given, "backbone.checkpoint")
    elif part.get("pretrained") and not trains:
        pretrained = backbone.pretrained_cfg["num_classes"]
        if classes and pretrained != classes:
            raise UserError(
                f"backbone.pretrained: {part['name']} was trained on {pretrained} classes, the "
                "data has "
                f"{classes}: its classifier would be a random one. Train it first (mhprobe.train)."
            )
    described, numbered = portable(registered(part)), data.unlabelled or features
    names = (
        [str(number) for number in range(backbone.num_classes)]
        if numbered
        else list(data.class_names)
    )
    return backbone, {"backbone": described, "class_names": names, "data": data.source.name}


def measures(
    parts: Mapping[str, Any], layout: HeadLayout, where: str
) -> dict[str, Measure | UserError]:
    """Return each measure by its name, or the UserError of one that does not fit the model.

    where: the parts' key.
    """
    built: dict[str, Measure | UserError] = {}
    for name, part in parts.items():
        try:
            built[name] = fitted(
                explained(construct(part, f"{where}.{name}"), f"{where}.{name}"), layout
            )
        except UserError as error:
            built[name] = error
    return built


def prepared(part: dict[str, Any], where: str) -> ImageData:
    """Return a data set of the configuration, decoded and split. where: the part's key."""
    refuse_plain(part.get("source"), f"{where}.source")
    if part.get("augment") is not None:
        refuse_plain(part["augment"], f"{where}.augment")
    with keyed(part, where):
        images: ImageData = construct(part, where)
        images.options_in = f"{where}.source."
        images.prepare_data()
        images.setup()
    return images
