"""Pruning as a question of a run: checks of its settings, pruning/rounds.py, files, tables and figures."""

import functools
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from mhprobe.backbones import attach, gives_features, layout_of
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.framework.questions import stored
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.plan import Question
from mhprobe.framework.run import image_data, networks, trainers
from mhprobe.framework.run.construct import construct, keyed
from mhprobe.framework.run.resume import facts_of_run
from mhprobe.framework.run.schema import Config, Prune, comes_with_weights
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.gates import gates_of
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.io.code import ABOVE, our_digest
from mhprobe.io.files import write_all
from mhprobe.io.progress import progress
from mhprobe.io.tensors import digest
from mhprobe.io.written import counted
from mhprobe.masking.base import LABELS, Order
from mhprobe.masking.parts.cache import cache_key
from mhprobe.pruning import elastic
from mhprobe.pruning.by_chance import ByChance
from mhprobe.pruning.given import Given
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.promised import Promise, check_images
from mhprobe.pruning.rounds import (
    Chooses,
    Judge,
    Pruned,
    Removal,
    Selection,
    ShownChooser,
    Source,
    Stage,
    Train,
    prune,
)
from mhprobe.report import tables
from mhprobe.report.figures.pruned import kept as kept_figure
from mhprobe.report.figures.pruned import speed as speed_figure
from mhprobe.report.measured import of_curves
from mhprobe.report.report import Report, Result, Sample
from mhprobe.report.runs.run import measured_on
from mhprobe.report.tables import Table
from mhprobe.stats.promise import Guarantee
from mhprobe.surgery import export
from mhprobe.surgery.costs import same_share_everywhere
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.speed import BATCHES, SHARES, speed_table
from mhprobe.weights.checkpoint import gates_kept, read_description, weights_files
from mhprobe.weights.description import pruned_description

LIMITS = ("remove", "exclude_layers", "min_heads_per_layer", "rescale", "latency_table")  # of paths


class Pruning:
    """The question of mhprobe.prune.

    promise: of the pruned network. UserError for settings that do not go together.
    """

    def __init__(self, cfg: Config, folder: Path) -> None:
        assert cfg.prune is not None, "a section of mhprobe.prune"
        refuse_settings(cfg, cfg.prune)
        self.cfg, self.settings, self.folder = cfg, cfg.prune, folder
        self.promise: Promise | None = None

    def questions(self, material: Material, report: Report) -> list[Question]:
        """Return the one question of the command."""
        return [Question("pruning", functools.partial(self.ask, report=report))]

    def ask(self, material: Material, report: Report) -> dict[str, Result]:
        """Save the pruned network, and put it in the place of the whole one.

        report: its loggers record the tuning.
        """
        model: Any = material.model
        order = construct(self.settings.order, "prune.order")
        with keyed(self.settings.model_dump(), "prune"):
            pruned, results = self._pruned(
                material, report, source_of(self.settings, order, self.cfg.seed, self._kept())
            )
        self.promise, model.backbone = pruned.promise, pruned.model
        if (
            pruned.scored == LABELS and not pruned.optimistic
        ):  # runs are compared on images that chose nothing
            image_data.keep_outcomes(self.folder, pruned.right[-1], material.data)
        attach(pruned.model, units={"head"})  # heads are found by their gates
        return results

    def _kept(self) -> Tensor | None:
        """(A,) bool, the decision of learned gates that the weights' file holds."""
        return gates_kept(self._weights) if self._weights else None

    @functools.cached_property
    def _weights(self) -> dict[str, Any]:
        file = networks.weights_file(self.cfg)
        return read_description(Path(file)) if file else {}

    def _pruned(
        self, material: Material, report: Report, source: Source
    ) -> tuple[Pruned, dict[str, Result]]:
        cfg, settings, model = self.cfg, self.settings, cast(GatedClassifier, material.model)
        dense, description = model.backbone.eval(), model.description
        if settings.onnx:
            export.needs_onnx()
        cache = {"cache": Path(cfg.cache_dir) / "orders", "facts": material.identity}
        judge = judge_of(cfg, settings, material, **cache)
        origin = made_from(cfg, settings, material.data, self._weights)
        # no images of ours: "test", whichever they were
        looked_up = measured_on(getattr(source, "order", None))
        looked_at = [*description.get("chosen_by", ()), *([f"{looked_up}:"] if looked_up else ())]
        removal = Removal(
            proj_bias=settings.proj_bias,
            fold=settings.fold,
            mend=repair_options(settings),
            train=retraining(cfg, settings, dense, description, material.data, report),
            draws=settings.random_draws,
        )
        pruned = prune(
            dense,
            judge,
            source,
            removal,
            rounds=settings.rounds,
            chosen_by=looked_at,
            promised=not settings.elastic,
        )
        results = of_pruned(pruned, material.layout)
        if pruned.promise is not None and not pruned.promise.steps:
            return pruned, results
        budgets, promised = (
            self._budgets(pruned, dense, source, judge) if settings.elastic else ({}, [])
        )
        saved = write_all(
            self._files(pruned, dense, budgets, judge.selection, {**description, "made": origin})
        )
        layout = layout_of(dense)
        if settings.speed:
            masks = {"this mask": pruned.gone}  # beside evenly spread ones
            masks |= {
                f"{100 * share:.0f} % removed": same_share_everywhere(layout, share)
                for share in SHARES
            }
            with progress("timing", len(BATCHES), "batch sizes") as done:
                speeds = speed_table(dense, masks, rounds=settings.speed_rounds, show=done)
            drawn = Result(
                tables.from_rows(speeds, "speed"), speed_figure(speeds), of=Sample(), drawn="speed"
            )
            results["speed"] = drawn.saying("times as fast", "the network is faster")
        kept = layout.kept(pruned.gone)
        emptied = [site.name for site in layout.of("neuron").sites if not kept[site.name]]
        print(
            *promised,
            *stages_in_words(pruned),
            *(f"{name}: no neuron is left, so a bias alone" for name in emptied),
            sep="\n",
        )
        print(f"saved: {', '.join(path.name for path in saved)}")
        return pruned, results

    def _files(
        self,
        pruned: Pruned,
        dense: nn.Module,
        budgets: dict[str, Any],
        selection: Selection,
        description: dict[str, Any],
    ) -> dict[Path, bytes]:
        """Return ``pruned.safetensors`` and its JSON, and the exports asked for.

        budgets: of an elastic file.
        """
        settings, folder, kept = self.settings, self.folder, layout_of(dense).kept(pruned.gone)
        origin = {**description["made"], "rescaled": pruned.rescaled, "fold": settings.fold}
        origin[f"test/{pruned.scored.metric}"] = pruned.stages[-1].accuracy
        promise = pruned.promise and _promised(pruned.promise)
        if promise := elastic.promise_at(budgets, settings.target or {}) if budgets else promise:
            origin["guarantee"] = promise
        description = {**description, "chosen_by": list(dict.fromkeys(pruned.chosen_by))}
        about = pruned_description(
            {**description, "made": origin}, kept, settings.proj_bias, folded_gates(dense)
        )
        files = weights_files(pruned.model, folder / "pruned.safetensors", about)
        example = next(selection.test(8)).images.cpu()
        example = example.repeat(2, 1, 1, 1) if len(example) == 1 else example
        exports = export.export_bytes(pruned.model, example, settings.onnx, settings.torch_export)
        files |= {folder / f"pruned.{end}": data for end, data in exports.items()}
        if budgets:  # the loaded network, and how to prune it to any of them
            about = {**description, "made": {**description["made"], "elastic": budgets}}
            if (folded := folded_gates(dense)) is not None:
                about["gates_folded"] = folded
            whole = prune_heads(dense, [])  # its gates multiplied in
            files |= weights_files(whole, folder / "elastic.safetensors", about)
        return files

    def _budgets(
        self, pruned: Pruned, dense: nn.Module, source: Source, judge: Judge
    ) -> tuple[Any, list[str]]:
        """Return what an elastic file makes budgets of, and lines for the terminal: which of them are promised."""
        target, promised = self.settings.target, list[str]()
        assert isinstance(source, OnPath) and pruned.scores is not None and target is not None
        budgets = elastic.elastic_part(source, pruned.scores, layout_of(dense))
        if promise := promise_asked(self.settings):
            calibrate = judge.calibrate(dense, False)
            budgets["promise"] = elastic.promise_budgets(
                dense, budgets, target, calibrate, promise, judge.selection.seed
            )
            (unit, least), kept = next(iter(target.items())), budgets["promise"]["kept"]
            held = (
                f"at {unit} {', '.join(f'{budget:g}' for budget in kept)}"
                if kept
                else "at no budget"
            )
            here = "" if least in kept else ", so not here"
            promised = [
                f"promised to lose at most {counted(promise.points, 'point')}: {held}{here}"
            ]
        return budgets, promised

    def complain(self) -> None:
        """Raise UserError where no step can be promised."""
        if (promise := self.promise) is None or promise.steps:
            return
        which = (
            "without these heads it cannot"
            if promise.curve.name == "given"
            else "at no step of the path it can"
        )
        raise UserError(
            f"prune.guarantee: {which} be promised to lose at most "
            f"{counted(promise.guarantee.points, 'point')} on "
            f"new images ({promise.images} calibration images): nothing was removed. More images, "
            "or more points."
        )


def refuse_settings(cfg: Config, settings: Prune) -> None:
    """Raise UserError for settings that are wrong before anything is loaded."""
    if cfg.weights is None and not comes_with_weights(cfg.backbone):
        raise UserError("prune: which trained network? Give weights=<.safetensors or .ckpt>.")
    if settings.heads is None and settings.order is None:
        raise UserError(
            "prune: which heads go? prune=order prune.remove=<how many> takes them by an order "
            "(prune/order=...); prune=given prune.heads=<list, file, table or gates> takes those "
            "that you name."
        )
    if settings.fold != "zero" and (settings.proj_bias == "drop" or settings.rescale):
        raise UserError(
            "prune.fold: heads leave their mean in the projection's bias, and nothing is to be "
            "made up for; expected prune.proj_bias=keep and prune.rescale=false beside it."
        )
    if settings.elastic:
        _refuse_with_elastic(settings)
    if promise_asked(settings) is not None:
        _refuse_with_promise(settings)
        _refuse_without_calibration(cfg)


def _refuse_with_elastic(settings: Prune) -> None:
    """Raise UserError for settings that an elastic file, masked at any budget by one order, cannot have."""
    order = (settings.order or {}).get("_target_", "")
    wrong = {
        "order": not order.endswith(".Knapsack"),
        "target": not {*(settings.target or {})} & {"flops", "params"},
        "rounds": settings.rounds > 1,
        "fold": settings.fold != "zero",
        "rescale": settings.rescale,
        "proj_bias": settings.proj_bias != "keep",
    }
    for key in (key for key, refused in wrong.items() if refused):
        raise UserError(
            f"prune.{key}: prune.elastic=true takes scores once and masks by them; expected "
            "prune/order=fisher with prune.target={flops: <share left>} or {params: <share left>}, "
            "one round, nothing folded or rescaled."
        )


def _refuse_with_promise(settings: Prune) -> None:
    """Raise UserError for settings beside which a guarantee does not hold."""
    wrong = {
        "rounds": settings.rounds > 1,
        "repair": settings.repair.per != "none",
        "tune_epochs": settings.tune_epochs > 0,
        "proj_bias": settings.proj_bias != "keep",
        "precision": settings.precision != "32-true",
    }
    for key in (key for key, refused in wrong.items() if refused):
        raise UserError(
            f"prune.{key}: a guarantee is of heads that go in one round, chosen in float32, and of "
            "nothing else; leave it out, or prune the pruned file again "
            "(weights=<pruned.safetensors>)."
        )


def _refuse_without_calibration(cfg: Config) -> None:
    """Raise UserError for a guarantee without images of its own."""
    if not cfg.data["calibration_fraction"]:
        raise UserError(
            "prune.guarantee: stands on images that chose neither weights nor path; expected "
            "data.calibration_fraction above 0, a share of the validation images (best given to "
            "mhprobe.train, too)."
        )


def promise_asked(settings: Prune) -> Guarantee | None:
    """Return the guarantee that the settings ask for."""
    guarantee = settings.guarantee
    return (
        None
        if guarantee is None or guarantee.points is None
        else Guarantee(**guarantee.model_dump())
    )


def made_from(
    cfg: Config, settings: Prune, data: ImageData, weights: dict[str, Any]
) -> dict[str, Any]:
    """Return the origin for the JSON of a pruned file.

    UserError for too few images to promise on.
    """
    origin = {
        "by": "mhprobe.prune",
        "from": cfg.weights,
        "data": data.fingerprint,
        "seed": cfg.seed,
    }
    if (promise := promise_asked(settings)) is None:
        return origin
    check_images(promise, data.sizes["calibration"])
    set_aside = weights.get("made", {}).get("set_aside") == data.set_aside
    if not set_aside:
        print(
            "prune.guarantee: the weights do not say that their training set these images aside, "
            "so it may have used "
            "them, and the promise may not hold: train with the same seed and "
            "data.calibration_fraction."
        )
    return {**origin, "set_aside_in_training": set_aside}


def judge_of(cfg: Config, settings: Prune, material: Material, **kept: Any) -> Judge:
    """Return the judge of a pruning. kept: the cache of scores, and the facts that decide them."""
    chosen = (settings.select_on, settings.images, cfg.seed)
    selection = Selection(material.data, material.model.device, *chosen)
    half = settings.precision == "bf16-mixed"
    return Judge(selection, networks.build_score(cfg), half=half, **kept)


def retraining(
    cfg: Config,
    settings: Prune,
    dense: nn.Module,
    description: dict[str, Any],
    data: ImageData,
    report: Report,
) -> Train | None:
    """Return a training of ``prune.tune_epochs`` that keeps the best epoch.

    UserError without labels or classifier.
    """
    if not settings.tune_epochs:
        return None
    data.refuse_unlabelled("prune.tune_epochs")
    if gives_features(dense):
        raise UserError(
            "prune.tune_epochs: training needs a classifier, and the network gives features; "
            "expected 0. "
            "prune.repair.per=weights mends without training."
        )
    cfg = cfg.but(trainer={"max_epochs": settings.tune_epochs})
    optim = networks.build_optim(cfg, data)

    def train(pruned: nn.Module, kept: dict[str, list[int]], number: int) -> nn.Module:
        about = pruned_description(description, kept, settings.proj_bias, folded_gates(dense))
        checkpoints = report.folder / "checkpoints" / f"round_{number}"
        model = GatedClassifier(pruned, about, **optim)
        trainer = trainers.build_trainer(
            cfg, trainers.build_callbacks(cfg, model, data, report, checkpoints), report
        )
        training = {
            **facts_of_run(cfg, about, data.images_of("train", "val")),
            "precision": trainer.precision,
        }
        key = cache_key(
            training=training,
            round=number,
            source=our_digest(ABOVE),
            of=digest(pruned.state_dict()),
        )
        if (tuned := stored.read_columns(networks.kept_measurements(cfg), key)) is None:
            trainer.fit(model, datamodule=data)
            networks.load_best(model, checkpoints)
            stored.write_columns(networks.kept_measurements(cfg), key, model.backbone.state_dict())
        else:  # by a run that was killed after this round
            print(
                f"round {number}: was tuned before with the same settings; those weights are taken"
            )
            model.backbone.load_state_dict(tuned.columns)
        return model.backbone

    return train


def source_of(
    settings: Prune,
    order: Order | Chooses | None,
    seed: int = 0,
    kept: Tensor | None = None,
) -> Source:
    """Return the choice of heads of the section ``prune``.

    order: of prune=order. kept: decision of learned gates, as for ``Given``. UserError for wrong
    limits.
    """
    guarantee = promise_asked(settings)
    if order is None:
        named = settings.model_dump(include={"heads", "curve", "step", "remove", "threshold"})
        return Given(**named, guarantee=guarantee, seed=seed, kept=kept)
    if not isinstance(order, Order):
        beside = (
            guarantee or settings.units != "head" or any(getattr(settings, name) for name in LIMITS)
        )
        if beside or settings.target is None or {*settings.target} - {"flops", "params", *KINDS}:
            raise UserError(
                "target: a method that is shown the network itself chooses by FLOPs, parameters or "
                "kinds; expected "
                "target={flops: <share left>}, {params: <share left>} or {head: <share left>, "
                "neuron: <share left>}, "
                f"and no guarantee, units, {', '.join(LIMITS[:-1])} or {LIMITS[-1]}."
            )
        return ShownChooser(order, settings.target)
    options = settings.model_dump(include={*LIMITS, "units", "target"})
    return OnPath(order, **options, guarantee=guarantee, chosen_on=settings.select_on, seed=seed)


def repair_options(settings: Prune) -> dict[str, Any] | None:
    """Options of least-squares repair; None for none."""
    return None if settings.repair.per == "none" else settings.repair.model_dump()


def folded_gates(model: nn.Module) -> list[float] | None:
    """Return the gates that a removal multiplies into the weights; None where all are 1."""
    gates = gates_of(model).effective()
    return None if bool((gates == 1).all()) else gates.tolist()


def stages_in_words(pruned: Pruned) -> list[str]:
    """Return the lines for the terminal: every stage, and what was removed."""
    first, last, lost = pruned.stages[0], pruned.stages[-1], pruned.scored.lost
    return [
        *(
            f"round {row.round} {row.stage:>8}: {row.counted}, {pruned.scored.right} "
            f"{100 * row.accuracy:.2f} % "
            f"({100 * row.low:.2f} - {100 * row.high:.2f})"
            + (f", {lost} {row.loss:.3g}" if lost else "")
            for row in pruned.stages
        ),
        f"masked and pruned logits differ by at most {pruned.difference:.2g}",
        f"parameters {first.parameters:,} -> {last.parameters:,}, FLOPs per image {first.flops:,} "
        f"-> {last.flops:,}",
    ]


def _by_chance(random: ByChance) -> dict[str, float]:
    """Return the metrics of as many random units."""
    numbers = {
        "difference": random.difference,
        "chosen_difference": random.chosen,
        "draws": random.draws,
        "images": random.images,
    }
    return {f"prune/random/{name}": number for name, number in numbers.items()}


def _promised(promise: Promise) -> dict[str, Any]:
    """Return the promise in plain values."""
    counts = {
        "heads": promise.heads,
        "neurons": promise.neurons,
        "steps": promise.steps,
        "images": promise.images,
    }
    numbers = {name: number for name, number in counts.items() if number is not None}
    return {
        "points": promise.guarantee.points,
        "confidence": promise.guarantee.confidence,
        **numbers,
    }


def of_pruned(pruned: Pruned, layout: HeadLayout) -> dict[str, Result]:
    """Return the tables of stages and of heads that are left, and the promise, if any."""
    results: dict[str, Result] = {}
    if (
        pruned.promise is not None
    ):  # the path's curve on the images that were set aside, and how far it holds
        promised = _promised(pruned.promise)
        of = Sample(pruned.promise.images, "calibration")
        numbers = {f"prune/promise/{name}": number for name, number in promised.items()}
        row = Result(tables.from_rows([promised], "promise"), metrics=numbers, of=of)
        units = " and ".join(f"{kind}s" for kind in KINDS if kind in layout.kinds)
        results["promise"] = row.saying(
            f"{units} that can go with the promise", f"more {units} can go"
        )
        results |= of_curves([pruned.promise.curve], (), layout, None)
    last = pruned.stages[-1]
    names = [name for name in Stage._fields if getattr(last, name) is not None]
    stages = Table(
        names, [[getattr(row, name) for name in names] for row in pruned.stages], "stages"
    )
    seen = "Test images chose the heads: these numbers are too good." if pruned.optimistic else ""
    metrics = {
        **{
            f"prune/{row.stage}/accuracy": row.accuracy for row in pruned.stages
        },  # of the last round
        **{
            f"prune/{n}": getattr(last, n)
            for n in ("heads", "neurons", "parameters", "flops")
            if n in names
        },
        **{
            f"prune/{n}": getattr(last, n)  # from the dense network, on the same images
            for n in ("difference", "difference_low", "difference_high")
        },
        "prune/largest_difference": pruned.difference,
        **({} if pruned.by_chance is None else _by_chance(pruned.by_chance)),
        f"test/{pruned.scored.metric}": last.accuracy,
        "test/loss": last.loss,
        "test/images": last.images,
        "test/right": round(last.accuracy * last.images),
    }
    results["pruning"] = Result(stages, metrics=metrics, about=seen).saying(
        pruned.scored.right, "a better network"
    )
    kept = tables.per_head(layout, dict.fromkeys(("value", "kept"), (~pruned.gone).long()))
    kept.columns.append("chosen_by")
    kept = kept._replace(rows=[[*row, " ".join(pruned.chosen_by)] for row in kept.rows])
    figure = kept_figure(layout, ~pruned.gone) if layout.of("head").sites else None
    drawn = Result(kept, figure, decides="removed", drawn="kept")
    results["kept_heads"] = drawn.saying("kept (1), removed (0)", "the head was kept")
    return results
