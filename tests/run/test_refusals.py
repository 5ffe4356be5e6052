"""What cannot give an answer is refused before anything is trained, in one line that says what to do instead."""

from __future__ import annotations

import pytest

import runs
from mhprobe.errors import UserError
from mhprobe.run import builders, launch

SETTINGS = {  # of the configuration alone
    "trainer.accumulate_grad_batches=0": "accumulate_grad_batches",
    "trainer.precision=16-true": "trainer.precision",
    "trainer.precision=64-true": "trainer.precision",
    "trainer.gradient_clip_val=-1": "gradient_clip_val",
    "+trainer.fast_dev_run=true": r"fast_dev_run.*data\.limit_train",
    "+trainer.limit_val_batches=0": r"limit_val_batches.*data\.limit_val",
    "+trainer.limit_val_batches=1": r"limit_val_batches.*data\.limit_val",
    "+trainer.limit_test_batches=0.5": r"limit_test_batches.*data\.limit_test",
}
PARTS = {  # of what is built from it
    "data.source.test_fraction=2": "test_fraction",
    "data.source.test_fraction=0": "test_fraction",
    "backbone.patch_size=3": "do not tile.*patch_size=2",
    "backbone.patch_size=0": "backbone",
    "backbone.num_heads=0": "backbone",
    "backbone.embed_dim=0": "backbone",
    "backbone=[]": "backbone: no name",
    "masking.step=99": "masking.step.*6 steps, got 99",
}
LENGTHS = {  # of how long the training is
    "+trainer.max_steps=2": "ends after 2 steps and the first validation comes after 3",
    "+trainer.check_val_every_n_epoch=5": "first validation comes after 15",
}


def built(cfg, folder):
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    return builders.trainer(cfg, builders.callbacks(cfg, model, data, report), report), model, data


def one_line(error) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("override", SETTINGS)
def test_settings_that_give_no_answer(tmp_path, override):
    with pytest.raises(UserError, match=SETTINGS[override]) as error:
        runs.config("train", tmp_path, override)
    assert one_line(error)


def test_all_of_the_images_is_no_part_of_them(tmp_path):
    whole = ("+trainer.limit_val_batches=1.0", "+trainer.limit_test_batches=1.0", "+trainer.fast_dev_run=false")
    assert runs.config("train", tmp_path, *whole)["trainer"]["limit_val_batches"] == 1.0


@pytest.mark.parametrize("override", PARTS)
def test_parts_that_cannot_be_built(tmp_path, override):
    with pytest.raises(UserError, match=PARTS[override]) as error:
        built(runs.config("train", tmp_path, "measure=[]", override), tmp_path / "run")
    assert one_line(error)


@pytest.mark.parametrize("override", LENGTHS)
def test_a_training_without_a_validation(tmp_path, override):
    trainer, model, data = built(
        runs.config("train", tmp_path, "measure=[]", "masking=none", override), tmp_path / "run"
    )
    with pytest.raises(UserError, match=LENGTHS[override]):
        trainer.fit(model, datamodule=data)
    assert trainer.global_step == 0


@pytest.mark.parametrize("devices", [0, -3, [], [0, 0], "many", "1.5", [-1]])
def test_devices_that_there_cannot_be(devices):
    with pytest.raises(UserError, match=r"trainer\.devices"):
        launch._processes({"devices": devices, "strategy": "ddp", "accelerator": "cpu"})


@pytest.mark.parametrize(("devices", "processes"), [(1, 1), ("3", 3), ([0, 1], 2), ("auto", 2), (-1, 2)], ids=str)
def test_devices_are_as_many_processes(devices, processes):
    assert launch._processes({"devices": devices, "strategy": "ddp", "accelerator": "cpu"}) == processes


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "deepspeed_stage_3", "ddp_spawn", "ddp_notebook"])
def test_a_network_in_pieces_is_refused_with_what_helps(tmp_path, strategy):
    cfg = runs.composed("probe", *runs.TINY, "weights=random", f"+trainer.strategy={strategy}")
    with pytest.raises(UserError, match=rf"trainer\.strategy: .*got {strategy}.*bf16-true") as error:
        launch.run("probe", cfg, tmp_path)
    assert one_line(error) and not list(tmp_path.iterdir())


def test_several_machines_need_a_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    cfg = runs.composed("train", *runs.TINY, "trainer.num_nodes=2")
    with pytest.raises(UserError, match=r"trainer\.num_nodes.*torchrun"):
        launch.run("train", cfg, tmp_path)
    assert not list(tmp_path.iterdir())
