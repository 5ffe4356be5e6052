"""Schema of the configuration: types and rules across fields; parts with a ``_target_`` check themselves."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from mhprobe.backbones.parts.folders import folder_of_others
from mhprobe.errors import UserError, quoted, short
from mhprobe.framework.run.sections import sections, settings_of
from mhprobe.heads import FillName, Kind, Part, Scope
from mhprobe.io.nested import leaves
from mhprobe.maps.base import NO_KIND
from mhprobe.recording.outputs import Of
from mhprobe.weights.hub import PREFIX, find_weights


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True
    )  # strict: else ``true`` would be taken for 1

    def but(self, **changes: Any) -> Self:
        """Return a copy with other values; a dict for a section changes values inside it."""
        for key, change in changes.items():
            if isinstance(part := getattr(self, key, None), _Section) and isinstance(change, dict):
                changes[key] = part.but(**change)
        return self.model_copy(update=changes)


class Optim(_Section):
    algorithm: Literal["adamw", "muon"]
    lr: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None
    warmup_epochs: Annotated[float, Field(ge=0)]
    min_lr: Annotated[float, Field(ge=0, le=1)]
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    ema: Annotated[float, Field(gt=0, lt=1)] | None
    teacher: str | None
    teacher_sees: Literal["view", "whole"]
    teacher_weight: Annotated[float, Field(ge=0, le=1)]
    temperature: Annotated[float, Field(gt=0)]


def _parts(frozen: Any) -> Any:
    """Check ``frozen`` in one message: for a union pydantic has one per type."""
    words, parts = get_args(Scope), get_args(Part)
    listed = isinstance(frozen, list) and frozen and all(part in parts for part in frozen)
    if frozen in words or listed or (type(frozen) is int and frozen > 0):
        return frozen
    raise PydanticCustomError(
        "frozen", f"Give {', '.join(words)}, a number of blocks, or a list of {', '.join(parts)}"
    )


class Gates(_Section):
    units: list[Kind] | None
    relaxation: dict[str, Any]
    penalty: dict[str, Any] | None
    lr: Annotated[float, Field(gt=0)]
    frozen: Annotated[Scope | list[Part] | int, BeforeValidator(_parts)]
    keep: int | None
    threshold: Annotated[float, Field(gt=0, lt=1)] | Literal["likelier"]
    mask: str | None


class Voita(_Section):
    heads: list[Annotated[int, Field(ge=1)]] | None
    scratch_epochs: Annotated[int, Field(ge=1)] | None
    scratch_optim: dict[str, Any]
    probe: str | None


class Causal(_Section):
    weight: float  # lab/papers/causal_gates.py checks the ranges
    steps: int
    start_steps: int
    lr: float
    batch_size: int
    threshold: float


class ProbeSettings(_Section):
    every_n_epochs: Annotated[int, Field(ge=1)] | None = None  # during training only
    every_n_steps: Annotated[int, Field(ge=1)] | None = None
    control: Literal["random_init"] | None
    also_on: dict[str, Any] | None
    target: Of | None
    top_k: Annotated[int, Field(ge=1)] | None


class Resume(_Section):
    allow: list[str]


class CheckpointSettings(_Section):
    every_n_steps: Annotated[int, Field(ge=1)] | None


class Curve(_Section):
    units: str
    order: dict[str, Any]
    exclude_layers: list[int] = []
    min_heads_per_layer: Annotated[int, Field(ge=0)] = 0
    rescale: bool = False
    target: dict[str, float] | None = None
    fill: FillName | None = None  # None: that of all curves


class Masking(_Section):
    fill: FillName
    select_on: Literal["validation", "test"]
    steps: Annotated[int, Field(ge=0)] | None
    step: Annotated[int, Field(ge=0)] | None
    join: dict[str, Any] | None
    curves: dict[str, Curve]


class PaperFigure(_Section):
    title: str
    shows: str
    look: str
    differs: str | None = None
    measure: list[str] = []
    curves: list[str] = []
    kinds: list[str] = []  # of figures: report/figures
    options: dict[str, Any] = {}  # of these kinds
    panel: dict[str, Any] | None = None  # what draws it instead
    elsewhere: str | None = None  # why not here, and the command that makes it


class Paper(_Section):
    name: str
    source: str
    measure: dict[str, dict[str, Any]] = {}
    masking: Masking | None = None
    figures: dict[str, PaperFigure]


class Faithfulness(_Section):
    baseline: Literal["mean", "blur"]
    steps: Annotated[int, Field(ge=1)]
    random_orders: Annotated[int, Field(ge=1)]


class EvidenceParts(_Section):
    measure: dict[str, dict[str, Any]]
    masking: Masking
    maps: dict[str, dict[str, Any]]
    measures_of: Annotated[int, Field(ge=1)]
    maps_of: Annotated[int, Field(ge=1)]
    control_of: Annotated[int, Field(ge=1)]
    chosen_on: Annotated[int, Field(ge=1)]
    draws: Annotated[int, Field(ge=2)]
    second: dict[str, Any] | None
    runs: dict[Literal["training", "pruned", "scratch", "wider"], str | None]


class Repair(_Section):
    per: Literal["none", "head", "weights"]
    ridge: Annotated[float, Field(ge=0)]


class PromiseAsked(_Section):
    points: Annotated[float, Field(gt=0, lt=100)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95


def _in_full(precision: Any) -> Any:
    """The full name of a precision that Lightning takes by a short one, as a number, too."""
    short = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}
    return short.get(str(precision), precision)


class Prune(_Section):
    order: dict[str, Any] | None = None  # prune=order
    guarantee: PromiseAsked | None = None
    target: dict[str, float] | None = None
    latency_table: str | None = None
    units: str = "head"
    exclude_layers: list[int] = []
    min_heads_per_layer: Annotated[int, Field(ge=0)] = 0
    rescale: bool = False
    heads: Any = None  # prune=given
    curve: str | None = None
    step: Annotated[int, Field(ge=0)] | None = None
    threshold: float | None = None
    remove: Annotated[int, Field(ge=1)] | None = None  # both
    select_on: Literal["train", "validation"]
    images: Annotated[int, Field(ge=1)]
    precision: Annotated[Literal["32-true", "bf16-mixed"], BeforeValidator(_in_full)]
    proj_bias: Literal["keep", "drop"]
    fold: Literal["zero", "mean", "optimal"]
    rounds: Annotated[int, Field(ge=1)]
    repair: Repair
    tune_epochs: Annotated[int, Field(ge=0)]
    elastic: bool
    onnx: bool
    torch_export: bool
    speed: bool
    speed_rounds: Annotated[int, Field(ge=1)]
    random_draws: Annotated[int, Field(ge=0)]


class TrainerSettings(_Section):
    """Keys that mhprobe reads; lightning.Trainer checks the others."""

    model_config = ConfigDict(extra="allow")
    max_epochs: Annotated[int, Field(ge=1)]
    precision: Annotated[  # weights stay float32: so are the numbers
        Literal["auto", "32-true", "bf16-mixed", "16-mixed"], BeforeValidator(_in_full)
    ]
    accelerator: str
    devices: Any
    strategy: Any = "auto"
    num_nodes: Annotated[int, Field(ge=1)]
    accumulate_grad_batches: Annotated[int, Field(ge=1)]
    gradient_clip_val: Annotated[float, Field(ge=0)] | None


class ReportSettings(_Section):
    live: bool


class Config(_Section):
    """All sections; None for those that a command has not. command: the module below mhprobe."""

    command: str
    name: str
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    weights: str | None
    out: str
    cache_dir: str
    progress: Literal["auto", "lines", "off"]
    verbose: bool
    report: ReportSettings
    style: Literal["screen", "paper"]
    backbone: dict[str, Any]
    data: dict[str, Any]
    gates: Gates
    trainer: TrainerSettings
    logger: dict[str, dict[str, Any]] = {}
    ckpt_path: str | None = None
    resume: Resume | None = None
    compile: bool = False
    optim: Optim | None = None
    checkpoint: CheckpointSettings | None = None
    measure: dict[str, dict[str, Any]] | None = None
    probe: ProbeSettings | None = None
    question: dict[str, dict[str, Any]] = {}
    callback: dict[str, dict[str, Any]] = {}
    masking: Masking | None = None
    search: dict[str, Any] = {}
    score: dict[str, Any] = {}
    prune: Prune | None = None
    maps: dict[str, dict[str, Any]] | None = None
    images: list[int | str] = []
    faithfulness: Faithfulness | None = None
    paper: Paper | None = None
    figures: list[int | str] | None = None
    control: Literal["random_init"] | None = None
    claims: list[str] | None = None
    evidence: EvidenceParts | None = None
    causal: Causal | None = None
    voita: Voita | None = None
    to: str | None = None
    budgets: list[float] = []
    methods: list[str] | None = None
    seeds: list[Annotated[int, Field(ge=0)]] = []
    cells: str = ""
    method: dict[str, dict[str, Any]] = {}


def _whole_images(cfg: Config) -> str | None:
    for key, instead in INSTEAD.items():
        value = (cfg.trainer.model_extra or {}).get(key)
        whole = 0.0 if key == "overfit_batches" else 1.0
        if not (value is None or value is False or (isinstance(value, float) and value == whole)):
            return (
                f"trainer.{key}: a number of part of the images is no result, got {value}. Use "
                f"{instead}."
            )
    return None


def _steps_without_average(cfg: Config) -> str | None:
    if cfg.optim and cfg.optim.ema and cfg.probe and cfg.probe.every_n_steps:
        return (
            "probe.every_n_steps: optim.ema validates averaged weights; expected "
            "probe.every_n_epochs."
        )
    return None


def _one_length_of_curves(cfg: Config) -> str | None:
    if cfg.masking and cfg.masking.step is not None and cfg.masking.steps is not None:
        return "masking: give step (one point) or steps (the curve up to there), not both."
    return None


def _some_curve(cfg: Config) -> str | None:
    if cfg.masking and not cfg.masking.curves and cfg.command == "mask":
        return (
            "masking.curves: expected a curve, got {}; take masking=three_curves or masking=orders."
        )
    return None


def _trained(cfg: Config) -> str | None:
    untrained = cfg.weights is None and cfg.optim is None and not comes_with_weights(cfg.backbone)
    if not untrained or cfg.command in ("fetch", "prune"):  # prune has a message of its own
        return None
    return " ".join([_missing("weights"), *absent_data({"data": cfg.data})])


def _classes(cfg: Config) -> str | None:
    classes = cfg.backbone.get("num_classes")
    if classes is None or classes == 0:
        return _without_classifier(cfg.command) if classes == 0 else None
    return (
        "backbone.num_classes: the data says how many there are, expected null, or 0 for a "
        f"network that gives features, got {classes}."
    )


def _dense_teacher(cfg: Config) -> str | None:
    if cfg.optim is None or cfg.optim.teacher != "dense":
        return None
    file = None if cfg.weights == "random" else cfg.weights
    if cfg.prune is None or (cfg.prune.tune_epochs and file is None):
        return (
            "optim.teacher=dense: is the network before pruning, of weights=<file>; here is none."
        )
    return None


def _sizes_of_voita(cfg: Config) -> str | None:
    sizes = cfg.voita and cfg.voita.heads
    if sizes is not None and (not sizes or len(set(sizes)) < len(sizes)):
        return f"voita.heads: expected different numbers of heads, or null, got {sizes}."
    return None


def _drop_path(cfg: Config) -> str | None:
    for key in ("drop_path_rate", "patch_drop_rate"):
        rate = cfg.backbone.get(key)
        if isinstance(rate, int | float) and not 0 <= rate < 1:
            return f"backbone.{key}: expected a share from 0 to below 1, got {rate}."
    return None


def _inside(cfg: Config) -> str | None:
    outside = Path(cfg.name).is_absolute() or ".." in Path(cfg.name).parts
    if outside and cfg.name == cfg.backbone.get("name"):  # the default
        others = folder_of_others(Path(cfg.name))
        place = others or f"expected a name of timm's, or local-dir:FOLDER, got {quoted(cfg.name)}."
        return f"backbone.name: {place}"
    if outside:
        return (
            f"name: is a folder below out={short(cfg.out, 60)}, got {quoted(cfg.name)}. Give another "
            "folder with out=<folder>."
        )
    return None


RULES: tuple[Callable[[Config], str | None], ...] = (  # a message, or None where all is well
    _whole_images,
    _steps_without_average,
    _one_length_of_curves,
    _some_curve,
    _trained,
    _classes,
    _dense_teacher,
    _sizes_of_voita,
    _drop_path,
    _inside,
)


def refuse_absent_folders(cfg: Config) -> None:
    """Raise UserError for the folder of another run that is not there, before the work starts."""
    runs = cfg.evidence.runs.items() if cfg.evidence else ()
    finished: dict[str, Any] = {f"evidence.runs.{name}": folder for name, folder in runs}
    others: dict[str, Any] = {"voita.probe": cfg.voita and cfg.voita.probe}
    for key, folder in {**others, **finished}.items():
        if folder and not Path(folder).is_dir():
            raise UserError(
                f"{key}: no folder {quoted(folder)}. Give the folder of a run, or null."
            )
    for key, folder in finished.items():
        if folder and not (Path(folder) / "metrics.json").is_file():
            raise UserError(
                f"{key}: {quoted(folder)} holds no finished run (no metrics.json). Give the folder of "
                "one, or null."
            )


def absent_data(parts: Mapping[str, Any]) -> list[str]:
    """Return a line for each data set whose folder or archive is not there.

    parts: sections of data sets by their keys; None for one that is not asked for.
    """
    lines = []
    for key, part in parts.items():
        root = (part or {}).get("root")
        if root is not None and not Path(str(root)).expanduser().exists():
            lines.append(f"{key}.root: {root} does not exist. Give a folder or an archive.")
    return lines


def check(command: str, cfg: DictConfig) -> Config:
    """Return the composed configuration, checked.

    UserError names the key, the rule and the value.
    """
    plain = _plain(cfg)
    _refuse_blank(plain)
    _take_files_of_folders(plain)
    checked: Config = _valid(Config, {**plain, "command": command})
    needed = settings_of(command) | (
        {"optim"} & sections(command)
    )  # other groups may be taken away
    if gone := sorted(needed - plain.keys()):
        raise UserError(_gone(gone[0]))
    if checked.voita is not None:
        _valid(Optim, {**plain["optim"], **checked.voita.scratch_optim}, "voita.scratch_optim.")
    if command in NEEDED and getattr(checked, NEEDED[command]) is None:
        raise UserError(_gone(NEEDED[command]))
    for rule in RULES:
        if (refused := rule(checked)) is not None:
            raise UserError(refused)
    if checked.prune and checked.optim and checked.optim.teacher == "dense":
        file = None if checked.weights == "random" else checked.weights
        checked = checked.but(optim={"teacher": file if checked.prune.tune_epochs else None})
    return checked


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain containers. UserError for what is missing or not finite."""
    if OmegaConf.is_missing(cfg, "weights") and comes_with_weights(cfg.backbone):
        cfg = cast(DictConfig, OmegaConf.merge(cfg, {"weights": None}))
    try:
        plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except MissingMandatoryValue as error:
        data = {"data": OmegaConf.select(cfg, "data", throw_on_missing=False)}
        raise UserError(" ".join([_missing(str(error.full_key)), *absent_data(data)])) from None
    except InterpolationKeyError as error:
        reason = str(error.msg).splitlines()[0].rstrip(".")
        raise UserError(f"{error.full_key}: {reason}; choose the option that has it.") from None
    for path, value in leaves(plain, lists=True):
        if isinstance(value, float) and not math.isfinite(value):  # nan passes every limit
            raise UserError(f"{'.'.join(path)}: expected a finite number, got {value}.")
    return plain


def _refuse_blank(plain: Mapping[str, Any]) -> None:
    """Raise UserError for a blank name of a file or folder, which would be the root or the present folder."""
    for key in ("weights", "name", "out", "cache_dir"):
        if isinstance(value := plain.get(key), str) and not value.strip():
            raise UserError(
                f"{key}: expected a name, got {quoted(value)}. Give one, or leave it out."
            )


def _take_files_of_folders(plain: dict[str, Any]) -> None:
    """Put the file of weights in the place of a run's folder, in place."""
    for section, key, part in (
        (plain, "weights", ""),
        (plain.get("optim") or {}, "teacher", "optim."),
    ):
        named = section.get(key)
        if not isinstance(named, str) or named in ("random", "dense"):
            continue
        if named.startswith(PREFIX) or Path(named).is_dir():
            section[key] = str(find_weights(named, key=part + key))


def _valid(section: type[_Section], values: dict[str, Any], where: str = "") -> Any:
    """Return the section with these values. UserError names the key, below ``where``."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        loc = first["loc"][:-1] if first["loc"][-1] in ("int", "str", "[key]") else first["loc"]
        key = where + ".".join(str(part) for part in loc)  # without the type that was tried
        if first["type"] == "missing":
            group = str(first["loc"][0])
            missing = sum(
                other["type"] == "missing" and other["loc"][0] == group for other in error.errors()
            )
            whole = missing > len(
                values.get(group, ())
            )  # was taken away; an experiment gave what is there
            raise UserError(_gone(where + group if whole else key)) from None
        raise UserError(f"{key}: {first['msg']}, got {quoted(first['input'], 100)}.") from None


WITH_FEATURES = (
    "fetch",
    "claims",
    "maps",
    "mask",
    "probe",
    "prune",
    "prunebench",
)  # commands that need no classifier


def refuse_without_classifier(command: str) -> None:
    """Raise UserError if ``command`` needs a classifier."""
    if (refused := _without_classifier(command)) is not None:
        raise UserError(refused)


def _without_classifier(command: str) -> str | None:
    if command in WITH_FEATURES:
        return None
    return (
        f"backbone.num_classes: 0 leaves the classifier out, and mhprobe.{command} needs one; "
        f"leave it null. Features are for mhprobe.{', mhprobe.'.join(WITH_FEATURES[1:])}."
    )


def comes_with_weights(backbone: Any) -> bool:
    return bool(backbone.get("checkpoint") is not None or backbone.get("pretrained"))


# groups without which a command has no question
NEEDED = {"mask": "masking", "prune": "prune", "prunebench": "prune", "maps": "maps"}

# options of Lightning that cut a validation or a test short -> settings for fewer images
INSTEAD = {
    "fast_dev_run": "data.limit_train=<images> data.limit_val=<images> data.limit_test=<images> trainer.max_epochs=1",
    "overfit_batches": "data.limit_train=<images>",
    "limit_val_batches": "data.limit_val=<images>",
    "limit_test_batches": "data.limit_test=<images>",
}


def _gone(key: str) -> str:
    if key == "maps":
        return NO_KIND
    return f"{key}: is missing and has to be there; leave out what takes it away (~{key}), or give it a value."


def _missing(key: str) -> str:
    if key == "weights":
        return (
            "weights: which trained network? Give weights=<.safetensors or .ckpt of "
            "mhprobe.train>, "
            "backbone.checkpoint=<weights of any other training>, or weights=random for one that "
            "has learned nothing."
        )
    return f"{key}: has no value yet; give {key}=<value>."
