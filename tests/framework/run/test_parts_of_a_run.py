"""What a run does when one of its parts cannot."""

from __future__ import annotations

import json
import math

import pytest
import torch
from PIL import Image

import mhprobe
import mhprobe.mask
import mhprobe.probe
import mhprobe.train
import runs
from mhprobe.framework.run import image_data, networks, trainers
from mhprobe.framework.run.schema import check
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.scoring.parts.tally import Tally

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("command", "said", "options"),
    [
        ("probe", "cifar10_vit_stem", ["weights=weights/cifar10_vit_stem.safetensors"]),
        ("mask", "digits_vit_now_model", ["weights=outputs/digits_vit/now/model.safetensors"]),
        ("probe", "untrained vit_tiny_patch16_224", ["weights=random"]),
        ("probe", "vit_tiny_patch16_224", ["weights=null", "backbone.pretrained=true"]),
        ("probe", "mine", ["weights=null", "backbone.checkpoint=/home/me/mine.pth"]),
        (
            "train",
            "digits_gates",
            ["+experiment=digits_gates", "weights=digits_vit.safetensors"],
        ),  # its own, by then
    ],
)
def test_small_print_names_the_weights_or_the_run_that_makes_some(command, said, options, tmp_path):
    report = trainers.open_report(runs.checked(command, "logger={}", *options), tmp_path, None)
    assert report.network == said


@pytest.mark.parametrize("key", ["weights", "backbone.checkpoint", "optim.teacher", "gates.mask"])
def test_a_file_that_is_not_there_is_missed_before_images_are_decoded(key, tmp_path, monkeypatch):
    def decode(*_):
        raise AssertionError("images first")

    monkeypatch.setattr(image_data, "prepare", decode)
    with pytest.raises(mhprobe.UserError, match=rf"^{key}: no file nowhere\.safetensors\. Give "):
        image_data.build_images(runs.checked("train", f"{key}=nowhere.safetensors"))
    with pytest.raises(AssertionError, match="images first"):  # negative control
        image_data.build_images(runs.checked("train"))


def test_missing_weights_and_missing_data_are_named_together_before_either_is_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(image_data, "prepare", lambda *_: "images")
    absent = tmp_path / "archive.tar"
    data = ["data=cifar10", f"data.root={absent}"]
    both = rf"^weights: no file nowhere\.ckpt\. .*data\.root: {absent} does not exist\."
    with pytest.raises(mhprobe.UserError, match=both):
        image_data.build_images(runs.checked("probe", "weights=nowhere.ckpt", *data))
    with pytest.raises(mhprobe.UserError, match=rf"which trained network\?.* data\.root: {absent}"):
        runs.checked("probe", "weights=null", *data)
    with pytest.raises(mhprobe.UserError, match=rf"which trained network\?.* data\.root: {absent}"):
        check("probe", runs.composed("probe", *data))  # weights=???, as nobody typed them
    absent.touch()  # the control: data that are there are not named
    with pytest.raises(mhprobe.UserError) as error:
        image_data.build_images(runs.checked("probe", "weights=nowhere.ckpt", *data))
    assert "data.root" not in str(error.value)
    two = ["weights=nowhere.ckpt", "optim.teacher=gone.ckpt"]
    with pytest.raises(
        mhprobe.UserError, match=r"weights: no file .* optim\.teacher: no file gone"
    ):
        image_data.build_images(runs.checked("train", *two))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"model_type": "vit"}', "is a model of transformers: mhprobe look takes the folder"),
        ('{"architecture": "vit_tiny_patch16_224"}', "is a model of timm: give the backbone name="),
        (None, "Give weights of any training"),  # the control
    ],
)
def test_a_folder_of_another_library_in_the_place_of_weights_is_called_what_it_is(
    config, says, tmp_path
):
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(
        mhprobe.UserError,
        match=rf"^backbone\.checkpoint: {tmp_path} is a folder, expected a file\. .*{says}",
    ):
        image_data.build_images(
            runs.checked("train", f"backbone.checkpoint={tmp_path}", "backbone.pretrained=false")
        )


@pytest.mark.parametrize("key", ["weights", "optim.teacher"])
def test_the_folder_of_a_run_stands_for_its_weights(key, tmp_path, monkeypatch):
    """The pruned ones, if there are some, as look takes them; a folder without any is refused in one line."""
    monkeypatch.setattr(image_data, "prepare", lambda *_: "images")
    with pytest.raises(mhprobe.UserError, match=rf"^{key}: .* holds no pruned\.safetensors"):
        runs.checked("train", f"{key}={tmp_path}")
    for name in ("model.safetensors", "pruned.safetensors"):
        (tmp_path / name).touch()
        cfg = runs.checked("train", f"{key}={tmp_path}")
        assert {"weights": cfg.weights, "optim.teacher": cfg.optim.teacher}[key] == str(
            tmp_path / name
        )
        assert image_data.build_images(cfg) == "images"


def test_a_measure_that_refuses_does_not_hold_up_the_others_and_is_named_at_the_end(
    tmp_path, monkeypatch
):
    def refuse(self):
        raise mhprobe.UserError("gate_importance: not today.")

    monkeypatch.setattr(GateImportance, "columns", refuse)
    with pytest.raises(mhprobe.UserError, match="not today"):
        mhprobe.probe.run(runs.config("probe", tmp_path, "data.batch_size=16"), tmp_path / "run")
    assert (tmp_path / "run" / "tables" / "svcca.csv").is_file()
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert not (tmp_path / "run" / "tables" / "gate_importance.csv").exists()


@pytest.mark.parametrize(("heads", "said"), [("[2,2]", 0), ("[2,3]", 2)])
def test_units_by_index_say_so_where_stages_differ(tmp_path, caplog, heads, said):
    swin = [
        "backbone.name=swin_tiny_patch4_window7_224",
        "~backbone.depth",
        "+backbone.depths=[1,1]",
    ]
    swin += ["backbone.img_size=16", "backbone.patch_size=2", "+backbone.window_size=4"]
    swin += [
        "backbone.embed_dim=12",
        f"backbone.num_heads={heads}",
        "masking.steps=1",
        "masking=six_curves",
    ]
    with caplog.at_level("INFO", logger="mhprobe"):
        mhprobe.mask.run(runs.config("mask", tmp_path, *swin), tmp_path / "run")
    lines = [record for record in caplog.records if "stage by stage" in record.getMessage()]
    assert len(lines) == said  # head_max and head_min


def test_images_without_labels_leave_a_model_the_classifier_that_it_has(tmp_path):
    for number in range(12):
        tensor = torch.full((8, 8, 3), 20 * number, dtype=torch.uint8)
        Image.fromarray(tensor.numpy()).save(tmp_path / f"{number}.png")
    size = [
        "backbone.depth=1",
        "backbone.embed_dim=12",
        "backbone.num_heads=3",
        "backbone.img_size=8",
    ]
    cfg = runs.checked(
        "probe",
        "weights=random",
        *size,
        "backbone.patch_size=4",
        "data=photos",
        f"data.root={tmp_path}",
    )
    model = networks.build_classifier(cfg, image_data.build_images(cfg))
    assert model.backbone.num_classes == 1000


def test_a_batch_larger_than_the_set_becomes_the_set_and_one_image_is_enough(tmp_path):
    result = runs.run(
        "train",
        *runs.TINY,
        *("data.batch_size=500", "data.limit_test=1", "masking=none", "measure=[gate_importance]"),
        cwd=tmp_path,
    )
    assert result.code == 0, result.err
    [line] = [line for line in (result.out + result.err).splitlines() if "batch_size: " in line]
    assert "500" in line and "96" in line
    assert "1 image" in result.out


@pytest.mark.parametrize(("images", "batch_size"), [(96, 24), (95, 24), (20, 24)])
def test_the_schedule_is_as_long_as_the_training(tmp_path, images, batch_size):
    size = [f"data.limit_train={images}", f"data.batch_size={batch_size}", "trainer.max_epochs=3"]
    cfg = runs.config("train", tmp_path, *size, "trainer.accumulate_grad_batches=2")
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    report = trainers.open_report(cfg, tmp_path / "run", model.gates.layout)
    trainer = trainers.build_trainer(cfg, [], report)
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == model._steps() == 3 * math.ceil(max(1, images // batch_size) / 2)


@pytest.mark.parametrize(("most", "steps"), [([], 12), (["+trainer.max_steps=8"], 8)])
def test_a_run_that_ends_early_warms_up_for_as_many_epochs(tmp_path, most, steps):
    size = [
        "data.limit_train=96",
        "data.batch_size=24",
        "trainer.max_epochs=3",
        "optim.warmup_epochs=1",
    ]
    cfg = runs.config("train", tmp_path, *size, *most)
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data)
    trainer = trainers.build_trainer(
        cfg, [], trainers.open_report(cfg, tmp_path / "run", model.gates.layout)
    )
    trainer.fit(model, datamodule=data)
    factor = trainer.lr_scheduler_configs[0].scheduler.lr_lambdas[0]
    assert trainer.global_step == model.total_steps == steps
    assert [factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0] and factor(
        5
    ) < 1  # an epoch has 4 steps


def test_weights_that_are_trained_on_name_the_images_they_saw_last(tmp_path, trained):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    for command, named in (("train", "other"), ("probe", "digits")):
        cfg = runs.config(command, tmp_path, weights)
        data = image_data.build_images(cfg)
        data.source.name = "other"
        assert networks.build_classifier(cfg, data).description["data"] == named


@pytest.mark.parametrize("without", ["~logger", "~logger.csv"])
def test_a_training_needs_no_logger(tmp_path, without):
    """``logger=null`` was answered with ``~logger``, which was refused, and ``~logger.csv`` ended in a traceback."""
    cfg = runs.config("train", tmp_path, *runs.SHORT, "masking=none", "measure=[]", without)
    mhprobe.train.run(cfg, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").exists() and not (tmp_path / "run" / "logs").exists()


def test_numbers_on_validation_are_those_of_the_weights_that_are_kept(tmp_path, monkeypatch):
    """They were those of the last epoch, beside the weights of the best one."""
    whole, falling = Tally.compute, iter([0.5, 0.25, 0.125])  # two epochs and the test
    monkeypatch.setattr(
        Tally, "compute", lambda tally: {**whole(tally), "accuracy": torch.tensor(next(falling))}
    )
    mhprobe.train.run(runs.config("train", tmp_path, *runs.SHORT), tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    model = json.loads((tmp_path / "run" / "model.json").read_text())
    assert metrics["test/accuracy"] == 0.125  # the control
    assert metrics["val/accuracy"] == model["made"]["val/accuracy"] == 0.5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"model_type": "vit"}', "is a model of transformers: mhprobe look takes the folder"),
        ('{"architecture": "vit_tiny_patch16_224"}', "give the backbone name=local-dir:"),
        (None, "expected a name of timm's, or local-dir:FOLDER"),
    ],
)
def test_a_folder_in_the_place_of_a_name_is_called_what_it_is(config, says, tmp_path):
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(mhprobe.UserError, match=rf"^backbone\.name: .*{says}"):
        runs.checked("train", f"backbone.name={tmp_path}")
    with pytest.raises(mhprobe.UserError, match=r"^name: is a folder below out="):  # the control
        runs.checked("train", f"name={tmp_path}")
