"""Study of mhprobe.studies.voita: heads pruned from trained weights, against the same heads trained from scratch.

Voita et al., 2019, Table 2. For each number of heads, gates are learned from ``weights`` until so
many are open (gates=hard_concrete_target). Then a model with those heads alone and new weights is
trained for as many epochs as weights and gates took together. Both are tested after their last
epoch: with gates the best on validation is the first, when all are open. Figures 7 to 10 are those
of lab/papers/sweep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mhprobe.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from mhprobe.data.base import ImageData
    from mhprobe.framework.run.schema import Config
    from mhprobe.stats.survival import Survivors


class SizeRow(NamedTuple):
    """One number of heads. Accuracies on the test images; pruned: with gates of exactly 0 and 1.

    delta: scratch - pruned, with its 95 % interval. p: McNemar's exact test; p_holm: corrected over
    numbers of heads.
    """

    heads: int
    pruned: float
    pruned_gates_as_learned: float
    scratch: float
    pruned_epochs: int | str
    scratch_epochs: int | str
    delta: float | str = ""
    delta_low: float | str = ""
    delta_high: float | str = ""
    p: float | str = ""
    p_holm: float | str = ""


class Fitted(NamedTuple):
    """Metrics of a trained model, and its right test images with gates of exactly 0 and 1."""

    metrics: dict[str, float]
    right: Tensor  # (N,) bool


def run(cfg: Config, folder: Path) -> None:
    """Run the study of the checked configuration, in one process or in every rank.

    UserError for wrong settings.
    """
    from mhprobe.framework.run import image_data, networks, trainers
    from mhprobe.framework.run.jobs import rank_by_environment
    from mhprobe.lab.papers import sweep
    from mhprobe.pages.html import finish_report
    from mhprobe.report.runs.facts import origin
    from mhprobe.weights.checkpoint import read_description

    options = cfg.voita
    assert options is not None
    weights = _whole_network(cfg)
    description = read_description(weights)
    epochs = _epochs(cfg, weights, description)

    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    heads = model.gates.layout.num_heads
    report = trainers.open_report(cfg, folder / "whole", model.gates.layout)
    report.begin(networks.name_subject(model, data, report), inside=folder)
    trainers.test(trainers.build_trainer(cfg, [], report), model, data, report)
    report.close()
    accuracy = model.results["test/accuracy"]
    whole = epochs.whole or ""
    rows = [SizeRow(heads, accuracy, accuracy, accuracy, whole, whole)]
    for size in options.heads or _three_quarters(heads):
        target = {"penalty": {**(cfg.gates.penalty or {}), "heads": size}, "keep": size}
        pruned = fit_and_test(cfg.but(gates=target), folder / f"heads_{size}_pruned")
        kept = folder / f"heads_{size}_pruned" / "tables" / "gates.csv"
        scratch = fit_and_test(
            _scratch(cfg, description, kept, epochs.scratch), folder / f"heads_{size}_scratch"
        )
        rows.append(_compared(size, pruned, scratch, epochs.pruned or "", epochs.scratch))
    rows[1:] = _adjusted(rows[1:])
    if rank_by_environment() == 0:
        facts = origin(cfg.command, folder)
        probe = None if options.probe is None else Path(options.probe)
        write_study(
            folder,
            rows,
            data,
            cfg.style,
            facts,
            sweep.survivors_of(sweep.finished_runs(folder), probe),
        )
        sweep.write_sweep(folder, probe, cfg.style, accuracy, facts)
        finish_report(folder, cfg.command, model.gates.layout)


class _Epochs(NamedTuple):
    """Epochs of the whole network, of it and its gates together, and from scratch; None where not known."""

    whole: int | None
    pruned: int | None
    scratch: int


def _epochs(cfg: Config, weights: Path, description: Mapping[str, Any]) -> _Epochs:
    """Return as many epochs from scratch as asked for, else as weights and gates take. UserError for neither."""
    whole = description.get("made", {}).get("epochs")
    pruned = None if whole is None else whole + cfg.trainer.max_epochs
    asked = None if cfg.voita is None else cfg.voita.scratch_epochs
    if (scratch := asked or pruned) is None:
        raise UserError(
            f"voita.scratch_epochs: {weights} does not say how long it was trained; give a number."
        )
    return _Epochs(whole, pruned, scratch)


def _three_quarters(heads: int) -> list[int]:
    """Return three quarters of the heads, a half and a quarter, each number once and from 1."""
    return list(dict.fromkeys(max(1, round(heads * share)) for share in (0.75, 0.5, 0.25)))


def _adjusted(rows: Sequence[SizeRow]) -> list[SizeRow]:
    """Return rows with p after Holm's correction over them."""
    import torch

    from mhprobe.stats.significance import holm

    adjusted = holm(torch.tensor([row.p for row in rows], dtype=torch.float64)).tolist()
    return [row._replace(p_holm=p) for row, p in zip(rows, adjusted, strict=True)]


def _whole_network(cfg: Config) -> Path:
    """Return the weights to prune.

    UserError where none are named, and for gates without a number of heads to reach.
    """
    from mhprobe.framework.run import networks

    if (weights := networks.weights_file(cfg)) is None:
        raise UserError(
            "voita: weights: expected the network to prune, the model.safetensors of a training "
            "run."
        )
    if "heads" not in (cfg.gates.penalty or {}):
        raise UserError(
            "voita: gates: expected gates with a target number of heads: "
            "gates=hard_concrete_target."
        )
    return Path(weights)


def _compared(
    heads: int, pruned: Fitted, scratch: Fitted, learned: int | str, epochs: int
) -> SizeRow:
    from mhprobe.stats.significance import paired

    test, binary = paired(pruned.right, scratch.right), pruned.metrics["gates/binary_accuracy"]
    gates, new = (arm.metrics["test/accuracy"] for arm in (pruned, scratch))
    return SizeRow(
        heads, binary, gates, new, learned, epochs, test.difference, test.low, test.high, test.p
    )


def fit_and_test(cfg: Config, folder: Path) -> Fitted:
    """Train as ``cfg`` says and test the last weights; with ``ckpt_path=last`` go on from a checkpoint, if any."""
    from mhprobe.framework.run import image_data, networks, questions, trainers
    from mhprobe.framework.run.resume import resume
    from mhprobe.scoring.parts.tally import tally

    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.open_report(cfg, folder, model.gates.layout)
    answers = questions.of_run(cfg, model, data, report)
    trainer = trainers.build_trainer(
        cfg, [*trainers.build_callbacks(cfg, model, data, report), answers], report
    )
    trainer.fit(model, datamodule=data, ckpt_path=resume(cfg, folder, trainer, part=True))
    trainers.test(trainer, model, data, report)
    networks.save_run_weights(cfg, trainer, model, data, folder)
    report.close()
    answers.complain()
    trainer.strategy.barrier()  # the other ranks read what the first has written
    gates, learned = model.gates, networks.learns_gates(model)
    on = gates.kept(cfg.gates.keep, cfg.gates.threshold) if learned else gates.effective()
    with gates.fixed(on.float()):
        counted = tally(model.eval(), data.batches("test", model.device), data.sizes["test"])
    return Fitted(report.metrics, counted["right"].cpu())


def write_study(
    folder: Path,
    rows: list[SizeRow],
    data: ImageData,
    style: str,
    origin: Mapping[str, str],
    left: Sequence[Survivors],
) -> None:
    """Write table and figure, and print a line for each number of heads.

    left: heads that each run keeps, by group.
    """
    from mhprobe.report import tables
    from mhprobe.report.figures import pruned
    from mhprobe.report.report import Report, Result, Sample
    from mhprobe.stats.significance import significant

    images = data.sizes["test"]
    groups = {row.group: row.of for row in left}
    kept = {(row.run, row.group): row.kept for row in left}
    arms = [f"heads_{row.heads}_pruned" for row in rows[1:]]
    counts = [list(groups.values())] + [[kept[arm, group] for group in groups] for arm in arms]
    full = [[*row, images, *count] for row, count in zip(rows, counts, strict=True)]
    table = tables.Table([*SizeRow._fields, "images", *groups], full)
    points = [(row.heads, row.pruned, row.scratch) for row in rows]
    sure = [significant(row.p_holm) for row in rows]
    figure = pruned.voita(points, images, 1 / data.num_classes, sure)
    report = Report(folder, style=style)
    report.origin, report.data, report.images = origin, data.source.name, Sample(images, "test")
    report.add(
        {"voita": Result(table, figure, drawn="voita").saying("test accuracy", "a better network")}
    )
    for row in rows:
        accuracies = f"pruned {100 * row.pruned:.2f} %, from scratch {100 * row.scratch:.2f} %"
        tested = f", p = {row.p_holm:.2g} (McNemar, Holm)" if isinstance(row.p_holm, float) else ""
        print(f"{row.heads} of {rows[0].heads} heads: {accuracies}{tested}")
    print(f"tables and figures: {folder}")


def _scratch(cfg: Config, description: dict[str, Any], kept: Path, epochs: int) -> Config:
    """Return the configuration for new weights of the same backbone, with the heads of the table ``kept``."""
    fixed = {
        "relaxation": {"_target_": "mhprobe.gates.HeadGates", "_partial_": True},
        "penalty": None,
    }
    return cfg.but(
        weights=None,
        backbone={
            **description["backbone"],
            "_target_": "mhprobe.backbones.build",
            "pretrained": False,
        },
        gates={**fixed, "frozen": "nothing", "keep": None, "mask": str(kept)},
        trainer={"max_epochs": epochs},
        optim=cfg.voita.scratch_optim if cfg.voita else {},
    )
