"""A probing run: selection on validation, the control, a second data set, histories, and what it costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import lightning as L
import pytest
import torch

import mhprobe
import mhprobe.mask
import mhprobe.probe
import mhprobe.prune
import runs
from data_sets import class_files, write_folder
from mhprobe.backbones import build
from mhprobe.data import images
from mhprobe.data.batch import Batch
from mhprobe.framework.questions.material import measure_split
from mhprobe.framework.run import image_data, networks, trainers
from mhprobe.framework.run.questions import answer, of_run
from mhprobe.framework.run.resume import resume
from mhprobe.framework.training.history import History
from mhprobe.heads import Ablation
from mhprobe.io import progress
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.recording.record import forward_equivalents
from mhprobe.weights.checkpoint import load_checkpoint, save_weights
from models import BUILDERS, images_for, labels_for
from pruned import BACKBONES, description
from runs import rows

CORRUPTED = (
    "+data@probe.also_on=digits",
    "++probe.also_on.source={_target_: mhprobe.data.corrupted.Corrupted, "
    "source: {_target_: mhprobe.data.digits.Digits}}",
    "probe.also_on.limit_test=40",
)


def config(folder: Path, *overrides: str, command: str = "probe"):
    small = [
        "data.limit_test=40",
        "data.limit_val=23",
        "data.eval_batch_size=16",
        "data.batch_size=32",
    ]
    return runs.config(command, folder, *small, "masking=none", *overrides)


def fitted(cfg: dict, folder: Path, *more: L.Callback):
    """Trained as ``cfg`` says: the model and its data."""
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.open_report(cfg, folder, model.gates.layout)
    asking = of_run(cfg, model, data, report)
    callbacks = [*trainers.build_callbacks(cfg, model, data, report), asking, *more]
    trainer = trainers.build_trainer(cfg, callbacks, report)
    trainer.fit(model, datamodule=data, ckpt_path=resume(cfg, folder, trainer))
    return model, data


def column(path: Path, name: str = "value") -> list[float]:
    return [float(row[name]) for row in rows(path)]


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """A run with everything, on fresh weights, and what it printed."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("probed")
    said = io.StringIO()
    measures = "measure=[gate_importance,fisher,one_head,interaction,svcca]"
    with contextlib.redirect_stdout(said):
        mhprobe.probe.run(
            config(folder, measures, "probe.control=random_init", *CORRUPTED), folder / "run"
        )
    return folder / "run", said.getvalue()


@pytest.mark.slow
def test_every_measure_is_there_for_the_model_its_control_and_the_second_data_set(probed):
    folder, _ = probed
    for name in ("gate_importance", "fisher", "one_head", "interaction", "svcca"):
        values = [
            column(folder / "tables" / f"{name}{suffix}.csv")
            for suffix in ("", "_random_init", "_digits_corrupted")
        ]
        assert values[0] != values[1] != values[2] != values[0]
        assert (folder / "figures" / f"{name}.png").is_file()
        assert not (
            folder / "figures" / f"{name}_random_init.png"
        ).exists()  # it stands in the measure's own
    beside = column(folder / "tables" / "gate_importance.csv", "random_init")
    assert beside == column(folder / "tables" / "gate_importance_random_init.csv")
    # the pairs' coefficients are in a table, and their mean is the value
    value = column(folder / "tables" / "svcca.csv")
    for row, mean in zip(rows(folder / "tables" / "svcca_rho.csv"), value, strict=True):
        rho = [float(row[name]) for name in row if name.startswith("rho_") and row[name] != "nan"]
        assert sum(rho) / len(rho) == pytest.approx(mean)
    # pairs too: those of heads of one layer are the same for both
    beside = column(folder / "tables" / "svcca.csv", "random_init")
    assert beside == column(folder / "tables" / "svcca_random_init.csv")


@pytest.mark.slow
def test_agreement_and_the_two_data_sets_follow_from_the_tables(probed):
    from scipy import stats

    folder, _ = probed
    tables = folder / "tables"
    for row in rows(tables / "agreement.csv"):
        for suffix in ("", "_random_init"):
            a, b = (
                column(tables / f"{row[key]}{suffix}.csv") for key in ("measure_a", "measure_b")
            )
            assert float(row[f"spearman{suffix}"]) == pytest.approx(
                stats.spearmanr(a, b).statistic, nan_ok=True
            )
        assert float(row["chance"]) == 0.5 and row["k"] == "3"  # half of six heads
    assert len(rows(tables / "agreement.csv")) == 3  # pairwise measures rank no heads
    for row in rows(tables / "digits_corrupted_against_digits.csv"):
        a, b = (
            column(tables / f"{row['measure']}{suffix}.csv") for suffix in ("", "_digits_corrupted")
        )
        assert float(row["pearson"]) == pytest.approx(stats.pearsonr(a, b).statistic)
    for figure in ("agreement", "digits_corrupted_against_digits"):
        assert (folder / "figures" / f"{figure}.png").is_file()


@pytest.mark.slow
def test_choices_are_made_on_validation_images(probed, tmp_path):
    folder, _ = probed
    table = rows(folder / "tables" / "one_head.csv")
    assert sum(int(row["chosen"]) for row in table) == 2 and all(
        row["validation"] != "nan" for row in table
    )
    for site in ("blocks.0.attn", "blocks.1.attn"):
        own = [row for row in table if row["site"] == site]
        [chosen] = [row for row in own if row["chosen"] == "1"]
        assert float(chosen["validation"]) == max(float(row["validation"]) for row in own)
    # with 23 validation images shares are in 23rds, with 40 test images they would not be
    assert all(
        math.isclose(float(row["validation"]) * 23 % 1, 0, abs_tol=1e-9)
        or math.isclose(float(row["validation"]) * 23 % 1, 1, abs_tol=1e-9)
        for row in table
    )


@pytest.mark.slow
def test_it_says_what_it_costs(probed):
    folder, _ = probed
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (
        1.5 < metrics["probe/forward_equivalents"] < 2.1
    )  # one forward, and a backward without weight gradients
    assert metrics["probe/forward_equivalents_ablation"] > 5


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_cost_counts_passes(build):
    model = build()
    mhprobe.attach(model)
    batch = Batch(
        images_for(model, 5), labels_for(5), torch.arange(5), torch.ones(5, dtype=torch.bool)
    )
    plain = forward_equivalents(model, batch, set())
    assert plain == 1
    # two products per product of attention in the backward pass, one per product with weights,
    # which are frozen
    assert 1.5 < forward_equivalents(model, batch, {"grad"}) < 2.1
    masked = forward_equivalents(model, batch, {Ablation(((0,), (1,)))})
    assert 2 < masked <= 3  # two more passes at most: what lies before a mask may be shared


@pytest.mark.parametrize("command", ["probe", "train"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("measure.fisher.normalize=l3", "normalize is one of"),
        ("measure.svcca.null=rows", "null is one of"),
        ("measure.svcca.variance=abc", "variance: expected a finite number, got 'abc'"),
        ("measure.svcca.variance=2", "variance is a share above 0 and at most 1, got 2"),
    ],
)
def test_a_measure_that_cannot_be_built_is_refused_before_the_work(
    tmp_path, command, option, words
):
    name = option.split(".")[1]
    cfg = config(tmp_path, f"measure=[gate_importance,{name}]", option, command=command)
    with pytest.raises(mhprobe.UserError, match=rf"{words}.*~measure\.{name}\.$") as error:
        answer(cfg, tmp_path / "run")
    assert str(error.value).startswith(f"measure.{name}")
    assert not (tmp_path / "run" / "tables").exists()


@pytest.mark.slow
def test_a_measure_that_refuses_a_batch_is_left_out_and_named(tmp_path, monkeypatch):
    def refuse(self, batch):
        raise mhprobe.UserError("fisher: not this batch.")

    from mhprobe.measures.fisher import Fisher

    monkeypatch.setattr(Fisher, "update", refuse)
    with pytest.raises(mhprobe.UserError, match="not this batch"):
        mhprobe.probe.run(config(tmp_path, "measure=[gate_importance,fisher]"), tmp_path / "run")
    assert (tmp_path / "run" / "tables" / "gate_importance.csv").is_file()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("probe.control=shuffled", "probe.control"),
        ("+probe.every_n_steps=0", "probe.every_n_steps"),
        ("probe.top_k=0", "probe.top_k"),
        ("+probe.every=3", "probe.every"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(tmp_path, override, words):
    with pytest.raises(mhprobe.UserError, match=words) as error:
        config(tmp_path, override)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_second_data_set_of_other_classes_or_the_same_one_is_refused(tmp_path, cifar):
    other = ["+data@probe.also_on=image_folder", f"probe.also_on.source.root={cifar}"]
    with pytest.raises(mhprobe.UserError, match=r"probe.also_on.*airplane"):
        mhprobe.probe.run(config(tmp_path, *other), tmp_path / "run")
    with pytest.raises(mhprobe.UserError, match="digits twice"):
        mhprobe.probe.run(config(tmp_path, "+data@probe.also_on=digits"), tmp_path / "run")


STEPS = ("measure=[gate_importance,svcca]", "probe.every_n_steps=2", "data.limit_train=96")


@pytest.mark.slow
def test_a_heads_history_is_a_curve_by_steps_and_goes_on_after_a_stop(tmp_path):
    def train(folder: str, *overrides: str, stop: tuple[L.Callback, ...] = ()):
        return fitted(
            config(tmp_path, *STEPS, *overrides, command="train"), tmp_path / folder, *stop
        )

    model, data = train("whole")  # two epochs of three steps
    table = rows(tmp_path / "whole" / "tables" / "gate_importance_history.csv")
    assert [row["step"] for row in table[::6]] == ["0", "2", "4", "6"] and len(table) == 24
    assert [row["epoch"] for row in table[::6]] == ["0", "0", "1", "1"]
    assert (tmp_path / "whole" / "figures" / "gate_importance_history.png").is_file()
    assert (
        tmp_path / "whole" / "tables" / "svcca_step_000004.csv"
    ).is_file()  # no value per head, so no history
    history = load_checkpoint(tmp_path / "whole" / "checkpoints" / "last.ckpt")["callbacks"][
        "History"
    ]["history"]
    assert len(history["gate_importance"]) == 4

    class Stop(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 1:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        train("first", stop=(Stop(),))
    assert (
        len(rows(tmp_path / "first" / "tables" / "gate_importance_history.csv")) == 12
    )  # what it had seen is there
    train("resumed", f"ckpt_path={tmp_path / 'first' / 'checkpoints' / 'last.ckpt'}")
    resumed = rows(tmp_path / "resumed" / "tables" / "gate_importance_history.csv")
    assert [row["step"] for row in resumed[::6]] == ["0", "2", "4", "6"]
    assert [row["value"] for row in resumed] == [row["value"] for row in table]

    # the points are the measure on the validation images, nothing else
    batches = list(data.batches("val"))
    expected = mhprobe.measure(model.backbone, batches, [GateImportance])["gate_importance"]
    assert [float(row["value"]) for row in table[-6:]] == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.slow
def test_probing_along_the_way_changes_no_weight(tmp_path):
    def weights(folder: str, *overrides: str) -> dict[str, torch.Tensor]:
        model, _ = fitted(config(tmp_path, *overrides, command="train"), tmp_path / folder)
        return model.backbone.state_dict()

    dropping = "+backbone.proj_drop_rate=0.2"
    with_probe = weights("a", *STEPS, dropping, "probe.every_n_epochs=1")
    without = weights("b", "measure=[gate_importance]", "data.limit_train=96", dropping)
    assert all(torch.equal(with_probe[key], without[key]) for key in without)


def test_a_history_of_measures_that_are_gone_is_forgotten():
    history = History({}, report=None)
    history.load_state_dict({"history": {"gone": [[0, 1, [1.0]]]}, "last_step": 1})
    assert history.points == {} and history.last_step == 1


def test_a_measure_without_control_is_said_once(tmp_path, monkeypatch, caplog):
    """Its own question asks for the control, and so does the agreement of measures."""

    def refused(self):
        raise mhprobe.UserError("no network to compare with.")

    monkeypatch.setattr("mhprobe.weights.twin.RandomTwin.__call__", refused)
    (folder := tmp_path / "run").mkdir()
    two = ("measure=[gate_importance,confidence]", "probe.control=random_init")
    mhprobe.probe.run(config(tmp_path, *two), folder)
    said = [record.getMessage() for record in caplog.records if "no control" in record.getMessage()]
    names = ("confidence", "gate_importance")
    assert sorted(said) == [f"{name}: no control. no network to compare with." for name in names]


PRUNED = ("prune=order", "prune.remove=1", "prune.speed=false")


@pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages")
@pytest.mark.parametrize(
    ("command", "more", "decoded"),
    [
        ("probe", ("data.limit_test=6",), 6),
        ("probe", ("data.limit_test=null",), 16),  # the control
        ("mask", ("data.limit_test=6", "data.limit_val=4", "masking.steps=1"), 10),
        ("prune", ("data.limit_test=6", *PRUNED, "prune.images=12"), 18),
        (
            "prune",
            ("data.limit_test=6", *PRUNED, "prune.images=3", "prune.select_on=validation"),
            9,
        ),
        ("prune", ("data.limit_test=6", *PRUNED, "prune.images=500"), 86),  # with those of any seed
    ],
)
def test_a_command_decodes_the_images_that_it_reads(tmp_path, monkeypatch, command, more, decoded):
    """All 60,000 images of CIFAR-10 were decoded for a probe on 300."""
    root = write_folder(tmp_path / "set", class_files(train=40, test=8, width=16, height=16))
    counted, decode = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *parts: counted.append(parts[3]) or decode(*parts))
    data = (
        "data.source._target_=mhprobe.data.images.ImageFolder",
        "~data.source.test_fraction",
        "~data.source.split_seed",
        f"+data.source.root={root}",
        "+data.source.stored_size=8",
        "data.limit_train=null",
        "data.limit_val=null",
        "data.batch_size=4",
    )
    measures = ("measure=[entropy]",) if command == "probe" else ()
    if command == "prune":
        about = {**description("vit"), "class_names": ["cat", "dog"]}
        save_weights(build(**BACKBONES["vit"], num_classes=2), tmp_path / "w.safetensors", about)
        measures = (f"weights={tmp_path / 'w.safetensors'}",)
    cfg = runs.config(command, tmp_path, *data, *measures, *more)
    (folder := tmp_path / "run").mkdir()
    module = {"probe": mhprobe.probe, "mask": mhprobe.mask, "prune": mhprobe.prune}[command]
    module.run(cfg, folder)
    assert len(counted) == decoded


def test_a_measure_that_takes_long_once_it_has_seen_the_images_says_so(
    tmp_path, monkeypatch, capsys
):
    """Permutations and clusters once took minutes behind a bar that was full."""
    cfg = config(tmp_path, "measure=[entropy,magnitude]")
    data = image_data.build_images(cfg)
    data.prepare_data(), data.setup()
    model = networks.build_classifier(cfg, data)
    measures = networks.build_measures(cfg.measure, model.gates.layout, "measure")
    clock, whole = [0.0], type(measures["entropy"]).finish
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def slow(self):
        clock[0] += 150
        return whole(self)

    monkeypatch.setattr(type(measures["entropy"]), "finish", slow)
    with progress.screen("", "lines", verbose=True):
        measure_split(model, measures, data, label="net: ")
    lines = [line.partition("mhprobe: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "net: measuring entropy, magnitude on test: 40 images in 0 s",
        "net: computing entropy: 1 of 2 measures, 150 s each, about 2 min left",
        "net: computing: 2 measures in 2 min",
    ]
