"""Options that need another setting: what was typed and would do nothing is refused.

An option of a part that is off is not an error in itself: an experiment sets it for all commands.
Somebody who types one believes that it does something. ``mhprobe.fetch`` is exempt: it is given the
words of the command that will run elsewhere.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_object

from mhprobe.errors import UserError
from mhprobe.framework.run.schema import Config, comes_with_weights
from mhprobe.io.nested import leaves
from mhprobe.measures.base import Measure
from mhprobe.weights.description import RATES

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
    if cfg.prune is None:
        return True
    if cfg.command == "prunebench":
        return any(_order_looks(cfg.method.get(name, {})) for name in cfg.methods or cfg.method)
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


def searches_heads(cfg: Config) -> bool:
    """Return True unless all orders with a search have units of several heads."""
    return _searches_units(cfg, lambda units: units not in SEVERAL)


def searches_sets(cfg: Config) -> bool:
    """Return True unless all orders with a search have units of one head."""
    return _searches_units(cfg, lambda units: units in SEVERAL)


def _searches_units(cfg: Config, wanted: Callable[[str], bool]) -> bool:
    """Return True if a searched curve has wanted units, or none is known to be searched."""
    study = cfg.paper or cfg.evidence
    curves = study.masking if study else cfg.masking
    units = (
        [curve.units for curve in curves.curves.values() if "search" in curve.order]
        if curves
        else []
    )
    return not units or any(map(wanted, units))


def curves_look(cfg: Config) -> bool:
    """Return True if a masking curve's order, its fill or what is asked of its heads looks at images."""
    if cfg.masking is None or cfg.masking.join:
        return True
    curves = cfg.masking.curves.values()
    return any(
        _order_looks(curve.order) or (curve.fill or cfg.masking.fill) != "zero" for curve in curves
    )


def joins_heads(cfg: Config) -> bool:
    """Return True if a whole curve has an order whose heads can be compared with those that it keeps."""
    if cfg.masking is None:
        return True
    orders = [str(curve.order.get("_target_")) for curve in cfg.masking.curves.values()]
    return cfg.masking.step is None and any(order not in NO_LOOK for order in orders)


def has_measures(cfg: Config) -> bool:
    """Return True if a probe has a measure."""
    return cfg.probe is None or bool(cfg.measure)


def measures_slopes(cfg: Config) -> bool:
    """Return True unless no measure of a probe takes slopes, as far as classes say it."""
    return cfg.probe is None or any(_takes_slopes(part) for part in (cfg.measure or {}).values())


def _takes_slopes(part: Mapping[str, Any]) -> bool:
    try:
        made = get_object(str(part.get("_target_")))
    except Exception:  # whoever builds it says so
        return True
    stated = [vars(of)["needs"] for of in getattr(made, "__mro__", ()) if "needs" in vars(of)]
    if not stated or not isinstance(stated[0], frozenset) or not stated[0]:  # decided by options
        return True
    return bool(stated[0] & SLOPES)


def reads_root(cfg: Config) -> bool:
    """Return True if the data set reads ``data.root``, or is named by weights that are not there."""
    unknown = cfg.weights not in (None, "random") and not Path(str(cfg.weights)).exists()
    roots = [of for path, of in leaves(cfg.data.get("source")) if path[-1] == "root"]
    return unknown or cfg.data.get("root") in roots


def splits_beside_test(cfg: Config) -> frozenset[str]:
    """Return which of the training and the validation images a command may look at."""
    every = frozenset({"train", "validation"})
    if cfg.command == "maps":
        return frozenset()
    if cfg.command == "studies.causal":
        return frozenset({"train"})
    if cfg.command == "probe" and not cfg.question:
        return frozenset({"validation"} if select_first(cfg.measure or {}) else ())
    if cfg.prune is None or trains(cfg) or cfg.score:
        return every
    promises = bool(cfg.prune.guarantee and cfg.prune.guarantee.points)
    chooses = cfg.command == "prunebench" or pruning_looks(cfg)
    return frozenset(
        [*(["validation"] if promises else []), *([cfg.prune.select_on] if chooses else [])]
    )


def select_first(measures: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if one of the measures looks at validation images before it measures."""
    return any(map(_selects, measures.values()))


def selects_on_second(cfg: Config) -> bool:
    """Return True if a measure looks at validation images of a second data set."""
    return select_first((cfg.evidence.measure if cfg.evidence else cfg.measure) or {})


def _selects(part: Mapping[str, Any]) -> bool:
    """Return False for a measure that looks at no validation images first, as far as its class says it."""
    try:
        made = get_object(str(part.get("_target_")))
        return bool(made.select is not Measure.select)
    except Exception:  # whoever builds it says so
        return True


def _drops(cfg: Config) -> bool:
    """Return True if a rate is above 0; at 0 the network has no such module, which an export may need."""
    return any(cfg.backbone.get(rate) for rate in RATES)


def tunes(cfg: Config) -> bool:
    """Return True for a command that trains, and for a pruning with tuning."""
    return cfg.prune is None or cfg.prune.tune_epochs > 0


SEVERAL = ("index", "layer", "stage")  # units of several heads
SLOPES = {"grad", "attn_grad", "row_slopes"}  # needs of measures, of which target is what
SPLITTING = ("val_fraction", "seed", "calibration_fraction")  # options of the validation images
OF_VALIDATION = tuple(f"data.{name}" for name in SPLITTING)
TEST_ALONE = "which images test does not depend on it, and no others are looked at; leave it out"


def _of_second(*options: str) -> tuple[str, ...]:
    """Return the keys of options of a second data set."""
    return tuple(f"{of}.{name}" for of in ("probe.also_on", "evidence.second") for name in options)


TUNING = (
    "optim",
    "optim.*",
    "trainer.max_epochs",
    "trainer.min_epochs",
    "trainer.max_steps",
    "trainer.min_steps",
    "trainer.max_time",
    "trainer.check_val_every_n_epoch",
    "trainer.val_check_interval",
    "trainer.gradient_clip_val",
    "trainer.gradient_clip_algorithm",
    "trainer.accumulate_grad_batches",
    "trainer.log_every_n_steps",
    "data.batch_size",
    "data.augment",
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
        trains,
        "nothing is trained; leave it out",
        ("prune.tune_epochs",),
    ),
    Need(
        tuple(f"backbone.{rate}" for rate in RATES),
        lambda cfg: trains(cfg) or cfg.prune is not None or not _drops(cfg),
        "nothing is trained; leave it out",
        (),
    ),
    Need(
        ("trainer.max_epochs",),
        lambda cfg: cfg.prune is None,
        "prune.tune_epochs says how long is tuned; leave it out",
        (),
    ),
    Need(
        ("trainer.precision",),
        lambda cfg: cfg.maps is None,
        "maps are made in full precision; leave it out",
        (),
    ),
    Need(
        ("trainer.limit_predict_batches",),
        lambda cfg: False,
        "nothing is predicted by Lightning; leave it out",
        (),
    ),
    Need(
        ("optim.lr", "optim.weight_decay", "optim.layer_decay"),
        lambda cfg: cfg.command != "train" or cfg.gates.frozen != "weights",
        "gates.frozen=weights trains gates alone, at gates.lr; leave it out",
        ("gates",),
    ),
    Need(
        ("weights",),
        lambda cfg: cfg.weights != "random" or not comes_with_weights(cfg.backbone),
        "random is a network that has learned nothing, and backbone.checkpoint or "
        "backbone.pretrained gives weights; leave one out",
        ("backbone",),
    ),
    Need(
        ("data.root",),
        reads_root,
        "this data set reads no folder; leave it out, or choose one that does, such as "
        "data=image_folder",
        ("data",),
    ),
    Need(
        OF_VALIDATION,
        lambda cfg: bool(splits_beside_test(cfg)),
        TEST_ALONE,
        ("measure", "prune", "question"),
    ),
    Need(
        ("data.calibration_fraction",),
        lambda cfg: "validation" in splits_beside_test(cfg),
        "they are taken from the validation images, which are not looked at; leave it out",
        ("measure", "prune"),
    ),
    Need(
        ("optim.teacher_weight", "optim.temperature", "optim.teacher_sees"),
        has_teacher,
        "there is no teacher; leave it out, or give optim.teacher=<weights>",
        ("optim.teacher", "voita.scratch_optim"),
    ),
    Need(
        (
            "gates",
            "gates.lr",
            "gates.keep",
            "gates.threshold",
            "gates.frozen",
            "gates.relaxation",
            "gates.relaxation.learnable",
            "gates.relaxation.low",
            "gates.relaxation.high",
            "gates.penalty",
            "gates.penalty.*",
        ),
        lambda cfg: cfg.command in TRAINS,
        "gates are trained by mhprobe.train alone; leave it out",
        (),
    ),
    Need(
        ("gates.keep", "gates.threshold", "gates.penalty.heads"),
        lambda cfg: cfg.voita is None,
        "voita.heads says how many heads are kept; leave it out",
        (),
    ),
    Need(
        ("gates.lr", "gates.keep", "gates.threshold"),
        learns_gates,
        "gates are fixed; leave it out, or learn them with gates=hard_concrete or gates=learnable",
        ("gates",),
    ),
    Need(
        ("gates.threshold",),
        lambda cfg: cfg.gates.keep is None,
        "gates.keep says how many heads are kept; leave one out",
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
        (
            "masking.select_on",
            "masking.steps",
            "masking.step",
            "masking.fill",
            "masking.join*",
            "score*",
        ),
        draws_curves,
        "no masking curve is drawn; leave it out, or draw some with masking=three_curves",
        ("masking",),
    ),
    Need(
        ("masking.select_on",),
        curves_look,
        "no order and no fill of these curves looks at images; leave it out",
        ("masking",),
    ),
    Need(
        ("masking.fill",),
        lambda cfg: (
            cfg.masking is None or any(of.fill is None for of in cfg.masking.curves.values())
        ),
        "every curve has a fill of its own; leave it out",
        ("masking",),
    ),
    Need(
        ("masking.join*",),
        joins_heads,
        "it asks of the heads that a whole chosen curve masks, and there is none; leave it out, or "
        "leave masking.step out and draw curves that choose, with masking=three_curves",
        ("masking",),
    ),
    Need(
        ("evidence.masking.select_on", "evidence.masking.steps", "evidence.masking.step"),
        lambda cfg: cfg.evidence is None,
        "claims take whole curves, chosen on draws of validation images; leave it out",
        (),
    ),
    Need(
        ("evidence.masking.join*",),
        lambda cfg: cfg.evidence is None,
        "no claim asks it; leave it out, or ask it of mhprobe.mask",
        (),
    ),
    Need(
        ("probe.*",),
        has_measures,
        "nothing is measured; leave it out, or take measures with measure=[entropy]",
        ("measure",),
    ),
    Need(
        ("probe.target",),
        measures_slopes,
        "no measure takes slopes; leave it out, or take one that does, such as "
        "measure=[gate_importance]",
        ("measure",),
    ),
    Need(
        _of_second("root"),
        lambda cfg: False,
        "a second data set reads data.root; leave it out, or give the root of its source",
        (),
    ),
    Need(
        _of_second("batch_size", "augment", "augment.*", "limit_train", "limit_calibration"),
        lambda cfg: False,
        "heads are measured on a second data set, and nothing is trained on it; leave it out",
        (),
    ),
    Need(
        _of_second(*SPLITTING, "limit_val"),
        selects_on_second,
        TEST_ALONE,
        ("measure",),
    ),
    Need(
        ("resume.allow",),
        lambda cfg: cfg.ckpt_path is not None,
        "no checkpoint is gone on from; leave it out, or give ckpt_path=last",
        ("ckpt_path",),
    ),
    Need(
        ("control",),
        lambda cfg: cfg.paper is None or bool(cfg.paper.measure),
        "this paper measures nothing; leave it out",
        ("paper",),
    ),
    Need(
        ("prune.order.repeats", "method.*.repeats"),
        lambda cfg: cfg.prune is None,
        "heads go along one path; leave it out",
        (),
    ),
    Need(
        ("method.*.seed",),
        lambda cfg: cfg.method == {},
        "seeds=[...] are those of all methods; leave it out",
        (),
    ),
    Need(
        ("search*",),
        searches,
        "no order that is asked for searches; leave it out, or draw curves that do with "
        "masking=three_curves",
        ("masking", "prune", "paper"),
    ),
    Need(
        ("search.single*",),
        searches_heads,
        "the units of all curves that search are several heads, which search.several chooses; "
        "leave it out, or mask single heads with masking=single_heads",
        ("masking", "paper"),
    ),
    Need(
        ("search.several*",),
        searches_sets,
        "the units of all curves that search are single heads, which search.single chooses; leave "
        "it out, or mask several together with masking=three_curves",
        ("masking", "paper"),
    ),
    Need(
        ("evidence.control_of",),
        lambda cfg: cfg.control is not None,
        "there is no control; leave it out, or give control=random_init",
        ("control",),
    ),
)


class Inside(NamedTuple):
    """Condition under which an option of a part has an effect, by the part's other options.

    targets: classes that have it, by the ends of their names. met, why: as of ``Need``. by: the
    options of the part that decide.
    """

    targets: tuple[str, ...]
    option: str
    met: Callable[[Mapping[str, Any]], bool]
    why: str
    by: tuple[str, ...]


INSIDE = (
    Inside(
        ("data.augment.Augment",),
        "magnitude",
        lambda part: bool(part.get("rand_augment")),
        "is of RandAugment, which is off; leave it out, or give rand_augment=2",
        ("rand_augment",),
    ),
    Inside(
        ("maps.attention.Attention", "maps.attention_patch.AttentionPatch"),
        "blocks",
        lambda part: part.get("heads") is None,
        "heads are named, and maps are of these; leave one out",
        ("heads",),
    ),
    Inside(
        ("data.cifar10.Cifar10", "data.flowers.Flowers", "data.pets.Pets"),
        "download_dir",
        lambda part: part.get("root") is None,
        "root names the images, so that nothing is downloaded; leave one out",
        ("root",),
    ),
)


Needs = Callable[[Config, str], Sequence[Need]]
"""What a command itself knows of the option of a key: needs besides NEEDS."""


def refuse_unneeded(
    cfg: Config, typed: Iterable[str], sweep: Sequence[str] = (), needs: Needs | None = None
) -> None:
    """Raise UserError for the first typed option that has no effect in this configuration.

    cfg: checked. typed: overrides of the job. sweep: overrides of the sweep that the job is of,
    with all their values. needs: of the command itself.
    """
    varied = [key for word in sweep for key in _varied(word)]
    if "experiment" in varied or cfg.command == "fetch":
        return
    whole = cfg.model_dump()
    for key in (key for word in typed for key in _keys(word)):
        known = (*NEEDS, *(needs(cfg, key) if needs else ()))
        for why in (*_unmet(cfg, key, varied, known), *_unmet_inside(whole, key, varied)):
            raise UserError(f"{key}: does nothing here: {why}.")


def _unmet(cfg: Config, key: str, varied: Sequence[str], needs: Iterable[Need]) -> Iterator[str]:
    """Yield why an option has no effect in a configuration."""
    for need in needs:
        of_option = any(fnmatch.fnmatchcase(key, pattern) for pattern in need.options)
        if of_option and not need.met(cfg) and not _decided(need.by, varied):
            yield need.why


def _unmet_inside(whole: Mapping[str, Any], key: str, varied: Sequence[str]) -> Iterator[str]:
    """Yield why an option has no effect in its part, by INSIDE. whole: the configuration, plain."""
    *path, option = key.split(".")
    part: Any = whole
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping):
        return
    for rule in INSIDE:
        here = option == rule.option and str(part.get("_target_")).endswith(rule.targets)
        by = [".".join([*path, name]) for name in rule.by]
        if here and not rule.met(part) and not _decided(by, varied):
            yield rule.why


def _keys(word: str) -> Iterator[str]:
    """Yield the options that an override gives a value; null asks for nothing."""
    with_value = _parsed(word)
    if with_value is None or with_value.is_delete() or with_value.is_sweep_override():
        return
    value = with_value.value()
    key = (with_value.package or with_value.key_or_group).replace("/", ".")
    if isinstance(value, dict) and value:
        for path, inner in leaves(value):
            if inner is not None:
                yield ".".join([key, *map(str, path)])
    elif value is not None:
        yield key


def _varied(word: str) -> Iterator[str]:
    override = _parsed(word)
    if override is not None and override.is_sweep_override():
        yield override.key_or_group.replace("/", ".")


def _parsed(word: str) -> Any:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:  # a flag of the command line
        return None


def _decided(by: Sequence[str], varied: Sequence[str]) -> bool:
    """Return True if a sweep varies one of the keys that decide whether options have an effect."""
    return any(
        f"{key}.".startswith(f"{of}.") or f"{of}.".startswith(f"{key}.")
        for of in by
        for key in varied
    )
