"""Options that need another setting: what was typed and would do nothing is refused.

An option of a part that is off is not an error in itself: an experiment sets it for all commands.
Somebody who types one believes that it does something.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from mhprobe.errors import UserError
from mhprobe.framework.run.schema import Config
from mhprobe.io.nested import leaves

TRAINS = ("train", "studies.voita")  # commands that always train
NO_LOOK = (  # parts of an order or method that choose without an image
    "mhprobe.masking.random.Random",
    "mhprobe.measures.magnitude.Magnitude",
)


class Need(NamedTuple):
    """Condition under which options have an effect.

    options: patterns of keys. met: of a checked configuration. why: what is the case where it is
    not met, and what to do. by: the keys that decide; where a sweep varies one, nothing is refused.
    """

    options: tuple[str, ...]
    met: Callable[[Config], bool]
    why: str
    by: tuple[str, ...]


def trains(cfg: Config) -> bool:
    """Return True if the command trains, or tunes what it prunes."""
    return cfg.command in TRAINS or (cfg.prune is not None and cfg.prune.tune_epochs > 0)


def learns_gates(cfg: Config) -> bool:
    """Return True if gates are trained."""
    relaxation = cfg.gates.relaxation
    fixed = str(relaxation.get("_target_")) == "mhprobe.gates.HeadGates"
    return cfg.command in TRAINS and (bool(relaxation.get("learnable")) or not fixed)


def has_teacher(cfg: Config) -> bool:
    """Return True if a training, or one of a study from scratch, has a teacher."""
    of_scratch = (cfg.voita.scratch_optim if cfg.voita else {}).get("teacher")
    return bool(of_scratch or (cfg.optim and cfg.optim.teacher))


def chooser_looks(cfg: Config) -> bool:
    """Return True if what chooses the heads to remove looks at images."""
    if cfg.prune is None or cfg.command == "prunebench":  # has methods that do
        return True
    return cfg.prune.order is not None and _order_looks(cfg.prune.order)


def _order_looks(order: dict[str, Any]) -> bool:
    targets = {str(value) for path, value in leaves(order) if path[-1] == "_target_"}
    if targets & set(NO_LOOK) or order.get("importance") == "magnitude":
        return False
    return order.get("table") is None  # scores of another run


def pruning_looks(cfg: Config) -> bool:
    """Return True if a pruning's choice, its repair or what it folds looks at images."""
    settings = cfg.prune
    if settings is None or settings.repair.per != "none" or settings.fold != "zero":
        return True
    return chooser_looks(cfg)


def reads_curves(cfg: Config) -> bool:
    """Return True unless heads are named by a list, a file of them, or gates."""
    heads = cfg.prune and cfg.prune.heads
    return heads is None or str(heads).endswith(".csv")


def draws_curves(cfg: Config) -> bool:
    """Return True unless the section of masking curves is there and has none."""
    return cfg.masking is None or bool(cfg.masking.curves)


def searches(cfg: Config) -> bool:
    """Return True if an order, of a curve, a paper or a pruning, has a search."""
    return any("search" in path[1:] for path, _ in leaves(cfg.model_dump()))


def tunes(cfg: Config) -> bool:
    """Return True for a command that trains, and for a pruning with tuning."""
    return cfg.prune is None or cfg.prune.tune_epochs > 0


TUNING = (
    "optim.*",
    "trainer.max_epochs",
    "trainer.gradient_clip_val",
    "trainer.accumulate_grad_batches",
    "data.batch_size",
    "data.augment.*",
)

NEEDS = (  # the first that is not met answers
    Need(
        (*TUNING, "trainer.precision"),
        tunes,
        "nothing is tuned; leave it out, or tune with prune.tune_epochs=1",
        ("prune.tune_epochs",),
    ),
    Need(
        TUNING,
        lambda cfg: trains(cfg) or cfg.command == "fetch",
        "nothing is trained; leave it out",
        ("prune.tune_epochs",),
    ),
    Need(
        ("optim.teacher_weight", "optim.temperature", "optim.teacher_sees"),
        has_teacher,
        "there is no teacher; leave it out, or give optim.teacher=<weights>",
        ("optim.teacher", "voita.scratch_optim"),
    ),
    Need(
        (
            "gates.lr",
            "gates.keep",
            "gates.threshold",
            "gates.frozen",
            "gates.relaxation.learnable",
            "gates.relaxation.low",
            "gates.relaxation.high",
            "gates.penalty.*",
        ),
        lambda cfg: cfg.command in TRAINS,
        "gates are trained by mhprobe.train alone; leave it out",
        (),
    ),
    Need(
        ("gates.lr", "gates.keep", "gates.threshold"),
        learns_gates,
        "gates are fixed; leave it out, or learn them with gates=hard_concrete or gates=learnable",
        ("gates",),
    ),
    Need(
        ("prune.curve", "prune.step", "prune.remove"),
        reads_curves,
        "prune.heads names the heads itself, and is no table of masking curves; leave one out",
        ("prune.heads",),
    ),
    Need(
        ("prune.images", "prune.select_on"),
        pruning_looks,
        "neither what chooses the heads nor a repair looks at images; leave it out, or choose by "
        "an order that does, such as prune/order=fisher",
        ("prune",),
    ),
    Need(
        ("prune.precision",),
        chooser_looks,
        "is of choosing heads by images, and none is looked at; leave it out, or choose by an "
        "order that looks, such as prune/order=fisher",
        ("prune",),
    ),
    Need(
        ("prune.repair.ridge",),
        lambda cfg: cfg.prune is None or cfg.prune.repair.per != "none",
        "nothing is repaired; leave it out, or repair with prune.repair.per=weights",
        ("prune.repair.per",),
    ),
    Need(
        ("prune.speed_rounds",),
        lambda cfg: cfg.prune is None or cfg.prune.speed,
        "speed is not measured; leave it out, or measure it with prune.speed=true",
        ("prune.speed",),
    ),
    Need(
        ("prune.random_draws",),
        lambda cfg: cfg.command != "prunebench",
        "a bench compares with its own method random; leave it out",
        (),
    ),
    Need(
        ("prune.onnx",),
        lambda cfg: cfg.command != "prunebench" or cfg.prune is None or cfg.prune.speed,
        "speed is not measured; leave it out, or measure it with prune.speed=true",
        ("prune.speed",),
    ),
    Need(
        ("prune.guarantee.confidence",),
        lambda cfg: bool(cfg.prune and cfg.prune.guarantee and cfg.prune.guarantee.points),
        "nothing is guaranteed; leave it out, or give prune.guarantee.points=<points of accuracy>",
        ("prune.guarantee",),
    ),
    Need(
        ("data.limit_calibration",),
        lambda cfg: bool(cfg.data.get("calibration_fraction")),
        "no images are set aside for calibration; leave it out, or give "
        "data.calibration_fraction=<share of the validation images>",
        ("data.calibration_fraction",),
    ),
    Need(
        ("masking.select_on", "masking.steps", "masking.step", "masking.fill", "masking.join*"),
        draws_curves,
        "no masking curve is drawn; leave it out, or draw some with masking=three_curves",
        ("masking",),
    ),
    Need(
        ("search*",),
        searches,
        "no order that is asked for searches; leave it out, or draw curves that do with "
        "masking=three_curves",
        ("masking", "prune", "paper"),
    ),
    Need(
        ("evidence.control_of",),
        lambda cfg: cfg.control is not None,
        "there is no control; leave it out, or give control=random_init",
        ("control",),
    ),
)


def refuse_unneeded(cfg: Config, typed: Iterable[str], sweep: Sequence[str] = ()) -> None:
    """Raise UserError for the first typed option that has no effect in this configuration.

    cfg: checked. typed: overrides of the job. sweep: overrides of the sweep that the job is of,
    with all their values.
    """
    varied = [key for word in sweep for key in _varied(word)]
    if "experiment" in varied:
        return
    for key in (key for word in typed for key in _keys(word)):
        for need in NEEDS:
            of_option = any(fnmatch.fnmatchcase(key, pattern) for pattern in need.options)
            if not of_option or need.met(cfg) or _decided(need, varied):
                continue
            raise UserError(f"{key}: does nothing here: {need.why}.")


def _keys(word: str) -> Iterator[str]:
    """Yield the options that an override gives a value; null asks for nothing."""
    with_value = _parsed(word)
    if with_value is None or with_value.is_delete() or with_value.is_sweep_override():
        return
    value = with_value.value()
    if isinstance(value, dict) and value:
        for path, inner in leaves(value):
            if inner is not None:
                yield ".".join([with_value.key_or_group, *map(str, path)])
    elif value is not None:
        yield with_value.key_or_group


def _varied(word: str) -> Iterator[str]:
    override = _parsed(word)
    if override is not None and override.is_sweep_override():
        yield override.key_or_group.replace("/", ".")


def _parsed(word: str) -> Any:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:  # a flag of the command line
        return None


def _decided(need: Need, varied: Sequence[str]) -> bool:
    """Return True if a sweep varies what decides whether the options of ``need`` have an effect."""
    return any(
        f"{key}.".startswith(f"{by}.") or f"{by}.".startswith(f"{key}.")
        for by in need.by
        for key in varied
    )
