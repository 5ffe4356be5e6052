"""The network of a run, what is measured of it, and its files, made from the checked configuration."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
from timm.models import save_for_hf
from torch import nn

from mhprobe.backbones import build, channels_of, gives_features
from mhprobe.backbones.parts.timm_models import note, registered
from mhprobe.data.base import SPLITS, ImageData, InputSpec
from mhprobe.data.source import other_classes
from mhprobe.errors import UserError, refuse_misfits
from mhprobe.framework.run.construct import construct, keyed, naming_keys
from mhprobe.framework.run.devices import build_lightning
from mhprobe.framework.run.jobs import rank_by_environment
from mhprobe.framework.run.schema import Config, refuse_without_classifier
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.heads import HeadLayout
from mhprobe.io.head_tables import read_kept
from mhprobe.io.tensors import digest
from mhprobe.measures.base import Measure, fitted
from mhprobe.report.report import Report
from mhprobe.scoring.base import Score, score_for
from mhprobe.weights.checkpoint import DESCRIBES, load_checkpoint, load_weights, save_weights
from mhprobe.weights.description import FREE, OURS, portable
from mhprobe.weights.foreign import load_foreign
from mhprobe.weights.normalisation import normalise_by, seen_by, tell
from mhprobe.weights.teacher import Recalled, Teacher

log = logging.getLogger(__name__)


# of backbone, to read weights of another training and to feed them
OF_FILE = ("checkpoint", "prefix", "leave_out", "mean", "std")


def build_classifier(cfg: Config, data: ImageData) -> GatedClassifier:
    """Return the network of ``weights``, or a new one, with gates.

    Sets the input size of ``data``.
    """
    L.seed_everything(cfg.seed, workers=True, verbose=False)  # new weights are drawn here
    weights = weights_file(cfg)
    backbone, description = _load(cfg, weights, data) if weights else _make(cfg, data)
    _refuse_channels(channels_of(backbone), data.channels)
    spec, reading = seen_by(backbone, None, None, "backbone")
    note(backbone, reading)
    data.spec = InputSpec(**spec)
    features = gives_features(backbone)
    if features:
        refuse_without_classifier(cfg.command)
    if cfg.score:  # refused before anything is computed
        _check_score(cfg, data, features)
    if data.unlabelled and not features:
        _label(cfg, data, backbone, description["class_names"])
    description = {**description, "input": {key: list(value) for key, value in spec.items()}}
    model = _gated(cfg, data, backbone, description)
    _warn_of_test_images(description)
    if cfg.command == "train" and learns_gates(model) and "neuron" in model.gates.layout.kinds:
        raise UserError(
            "gates.units: the history of learned gates is of heads, expected gates.units=[head]."
        )
    if cfg.gates.mask:
        with keyed(cfg.gates.model_dump(), "gates"):
            model.gates.close(~read_kept(cfg.gates.mask, model.gates.layout))
    if cfg.compile:
        backbone.compile()
    return model


def _refuse_channels(expected: int, there: int) -> None:
    """UserError for images of other channels than a network expects, but for colours in grey."""
    if expected == there or (expected, there) == (1, 3):
        return
    raise UserError(
        f"backbone.in_chans: images have {there} channels, expected as many, or 1 for colours in "
        f"grey, got {expected}. Take a network of {there}; class folders of .npy arrays (height, "
        "width, channels) have any number of channels."
    )


def _check_score(cfg: Config, data: ImageData, features: bool) -> None:
    """UserError for a score that the images that are scored cannot have."""
    section = cfg.prune or cfg.masking
    chooses = SPLITS[section.select_on] if section else "test"
    scored = [data.sizes["test"], data.sizes[chooses]]
    bank = data.sizes["train"]
    if cfg.prune:
        scored.append(cfg.prune.images)
        if chooses != "val":
            bank += data.sizes["val"]
    score_for(build_score(cfg), "score", not data.unlabelled, features, min(scored), bank)


def _gated(
    cfg: Config, data: ImageData, backbone: nn.Module, description: Mapping[str, Any]
) -> GatedClassifier:
    """Return a backbone with the gates of the configuration."""
    gates = cfg.gates
    with keyed({"gates": gates.model_dump(), "optim": cfg.optim.model_dump() if cfg.optim else {}}):
        return GatedClassifier(
            backbone,
            dict(description),
            make_gates=naming_keys(
                construct(gates.relaxation, "gates.relaxation"), "gates.relaxation"
            ),
            units=gates.units,
            penalty=construct(gates.penalty, "gates.penalty") if gates.penalty else None,
            gate_lr=gates.lr,
            frozen=gates.frozen,
            **build_optim(cfg, data),
        )


def _warn_of_test_images(description: Mapping[str, Any]) -> None:
    chosen_by = description.get("chosen_by", ())
    if rank_by_environment() == 0 and any(images.startswith("test:") for images in chosen_by):
        log.warning(
            "weights: test images chose the heads of this network: its numbers on test images are "
            "too good."
        )


def build_score(cfg: Config) -> type[Score] | None:
    """Return the score of an image; None for the one that the data and the model allow."""
    return construct(cfg.score, "score").func if cfg.score else None


def _label(cfg: Config, data: ImageData, backbone: nn.Module, class_names: Sequence[str]) -> None:
    """Label the images by the predictions of the whole network."""
    if cfg.command == "train":
        data.refuse_unlabelled("training")
    device = build_lightning(
        cfg, logger=False, enable_checkpointing=False
    ).strategy.root_device  # each rank has its own
    data.label_by(backbone.to(device).eval(), class_names, device)
    if rank_by_environment() == 0:
        print(
            f"data: {data.source.name} has no labels. Accuracy is the share of images whose "
            "largest logit is where the "
            f"whole network has it, loss the cross-entropy of that class."
        )


def build_optim(cfg: Config, data: ImageData) -> dict[str, Any]:
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


def load_best(model: GatedClassifier, checkpoints: Path) -> None:
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


def save_run_weights(
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


def learns_gates(model: GatedClassifier) -> bool:
    return any(gate.requires_grad for gate in model.gates.parameters())


def name_subject(model: GatedClassifier, data: ImageData, report: Report) -> dict[str, str]:
    """Return what results are of: the names of the network, with its gates, and of the images, by their digests."""
    gates = model.gates.effective()
    tensors = {
        **model.backbone.state_dict(),
        **({} if bool((gates == 1).all()) else {"gates": gates}),
    }
    return {digest(tensors)[:8]: report.network, data.fingerprint[:8]: data.source.name}


def build_measures(
    parts: Mapping[str, Any], layout: HeadLayout, where: str
) -> dict[str, Measure | UserError]:
    """Return each measure by its name, or the UserError of one that does not fit the model.

    where: the parts' key.
    """
    built: dict[str, Measure | UserError] = {}
    for name, part in parts.items():
        try:
            built[name] = fitted(
                naming_keys(construct(part, f"{where}.{name}"), f"{where}.{name}"), layout
            )
        except UserError as error:
            built[name] = error
    return built


def kept_measurements(cfg: Config) -> Path:
    """Return the folder of kept measurements, shared by runs."""
    return Path(cfg.cache_dir) / "measured"


def _load(cfg: Config, weights: str, data: ImageData) -> tuple[nn.Module, dict[str, Any]]:
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


def _make(cfg: Config, data: ImageData) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network of ``backbone`` and its description."""
    part = {
        key: value for key, value in cfg.backbone.items() if key not in (*OF_FILE, "num_classes")
    }
    trains, checkpoint = cfg.optim is not None, cfg.backbone.get("checkpoint")
    _refuse_contradictions(part, _reading(cfg), checkpoint)
    features = cfg.backbone.get("num_classes") == 0
    # None: as many as its own classifier has
    classes = None if data.unlabelled else data.num_classes
    with keyed(cfg.backbone, "backbone"):
        backbone = construct({**part, "num_classes": 0 if features else classes}, "backbone")
    if checkpoint is not None:
        _read_checkpoint(cfg, backbone, str(checkpoint), trains)
    numbers = {key: cfg.backbone.get(key) for key in ("mean", "std")}
    normalise_by(backbone, **numbers, where="backbone.checkpoint")
    if checkpoint is not None:
        given = [key for key, value in numbers.items() if value is not None]
        tell(backbone, part["name"], given, "backbone.checkpoint")
    elif part.get("pretrained") and not trains and classes and not features:
        _refuse_random_classifier(backbone, part["name"], classes)
    names = list(data.class_names)
    if data.unlabelled or features:
        names = [str(number) for number in range(cast(Any, backbone).num_classes)]
    described = portable(registered(part))
    return backbone, {"backbone": described, "class_names": names, "data": data.source.name}


def _reading(cfg: Config) -> dict[str, Any]:
    """Return the options of how backbone.checkpoint is read, that are given."""
    options = {key: cfg.backbone.get(key) for key in ("prefix", "leave_out")}
    return {key: value for key, value in options.items() if value not in (None, False)}


def _read_checkpoint(cfg: Config, backbone: nn.Module, file: str, trains: bool) -> None:
    """Put the weights of a file of another training into a backbone."""
    reading = _reading(cfg)
    with keyed(reading, "backbone"):
        refuse_misfits(load_foreign, reading, "backbone")
    load_foreign(backbone, file, "backbone.checkpoint", new_classifier=trains, **reading)


def _refuse_contradictions(
    part: Mapping[str, Any], reading: Mapping[str, Any], checkpoint: Any
) -> None:
    """UserError for options of ``backbone`` that do not go together. reading: those of a checkpoint."""
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


def _refuse_random_classifier(backbone: nn.Module, name: str, classes: int) -> None:
    """UserError for pretrained weights of another number of classes, where nothing trains a new classifier."""
    pretrained = cast(Any, backbone).pretrained_cfg["num_classes"]
    if pretrained != classes:
        raise UserError(
            f"backbone.pretrained: {name} was trained on {pretrained} classes, the data has "
            f"{classes}: its classifier would be a random one. Train it first (mhprobe.train)."
        )
