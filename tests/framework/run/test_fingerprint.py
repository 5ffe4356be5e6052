"""A checkpoint knows its run: what makes one, what is different, what may be, and where to look for the last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from mhprobe.errors import UserError
from mhprobe.framework.run.constructors import defaults_of
from mhprobe.framework.run.resume import (
    ABSENT,
    allowed_differences,
    differences,
    earlier,
    facts_of_run,
)
from mhprobe.framework.run.schema import Config, Gates, Optim, TrainerSettings
from mhprobe.framework.training.checkpoints import SameRun
from mhprobe.framework.training.ends import EarlyStopping

CFG: dict[str, Any] = {
    "seed": 0,
    "compile": False,
    "weights": None,
    "data": {
        "batch_size": 24,
        "root": "/a",
        "source": {"root": "/a", "size": 8},
        "limit_train": None,
    },
    "optim": {"lr": 1e-3, "weight_decay": 0.05},
    "gates": {
        "relaxation": {"_target_": "x"},
        "penalty": None,
        "keep": None,
        "threshold": 0.5,
        "lr": 1e-2,
    },
    "trainer": {
        "max_epochs": 2,
        "devices": 1,
        "precision": "auto",
        "gradient_clip_val": 1.0,
        "enable_progress_bar": True,
    },
}
ABOUT = {"backbone": {"name": "vit", "depth": 2}}
PATH = Path("old/last.ckpt")


def of(
    images: str = "abc",
    processes: int = 1,
    precision: str = "32-true",
    about: Any = ABOUT,
    **changes: Any,
) -> Any:
    cfg = {
        key: {**CFG[key], **changes[key]}
        if isinstance(changes.get(key), dict)
        else changes.get(key, CFG[key])
        for key in CFG
    }
    parts = {"optim": Optim, "gates": Gates, "trainer": TrainerSettings}
    cfg |= {name: section.model_construct(**cfg[name]) for name, section in parts.items()}
    return {
        **facts_of_run(Config.model_construct(**cfg), about, images),
        "processes": processes,
        "precision": precision,
    }


def answer(theirs: Any, ours: Any, *allow: str) -> str:
    with pytest.raises(UserError) as error:
        allowed_differences(theirs, ours, allow, PATH)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_same_settings_are_the_same_run():
    assert differences(of(), of()) == {} and allowed_differences(of(), of(), [], PATH) == []


@pytest.mark.parametrize(
    "same",
    [
        {"data": {"root": "/b", "source": {"root": "/b", "size": 8}}},
        {"trainer": {"enable_progress_bar": False}},
        {"gates": {"keep": 3}},
    ],
    ids=str,
)
def test_where_things_lie_and_what_is_shown_make_no_run(same):
    assert differences(of(), of(**same)) == {}


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"seed": 3}, "seed"),
        ({"images": "abd"}, "data.images"),
        ({"data": {"limit_train": 96}}, "data.limit_train"),
        ({"data": {"batch_size": 32}}, "data.batch_size"),
        ({"about": {"backbone": {"name": "vit", "depth": 3}}}, "backbone.depth"),
        ({"about": {**ABOUT, "kept": {"blocks.0.attn": [1]}}}, "heads"),
        ({"processes": 2}, "processes"),
        ({"gates": {"relaxation": {"_target_": "y"}}}, "gates.relaxation._target_"),
    ],
    ids=lambda value: str(value),
)
def test_what_decides_the_images_and_the_network_can_never_change(other, key):
    theirs, ours = of(), of(**other)
    assert any(found.startswith(key) for found in differences(theirs, ours))
    line = answer(theirs, ours, "optim", key)
    assert (
        f"{key}" in line
        and " was " in line
        and "weights=old/last.ckpt" in line
        and "resume.allow" not in line
    )


@pytest.mark.parametrize(
    ("other", "key", "was", "now"),
    [
        ({"optim": {"lr": 1e-2}}, "optim.lr", "0.001", "0.01"),
        ({"optim": {"weight_decay": 0.0}}, "optim.weight_decay", "0.05", "0.0"),
        ({"precision": "bf16-mixed"}, "precision", "32-true", "bf16-mixed"),
        ({"trainer": {"gradient_clip_val": None}}, "trainer.gradient_clip_val", "1.0", "None"),
        ({"trainer": {"max_epochs": 1}}, "trainer.max_epochs", "2", "1"),
        ({"compile": True}, "compile", "False", "True"),
    ],
    ids=str,
)
def test_what_may_change_on_purpose_needs_a_word(other, key, was, now):
    line = answer(of(), of(**other))
    assert f"{key} was {was}, is {now}" in line and f"resume.allow=[{key}]" in line
    for allow in (key, key.partition(".")[0]):
        assert key in allowed_differences(of(), of(**other), [allow], PATH)[0]


def test_every_difference_is_listed_with_both_values():
    line = answer(of(), of(seed=3, images="abd", optim={"lr": 1.0}), "optim.lr")
    assert (
        "seed was 0, is 3" in line
        and "data.images was abc, is abd" in line
        and "optim.lr" not in line
    )


def test_a_part_that_only_one_of_them_has_is_a_difference():
    theirs = {key: value for key, value in of().items() if key != "optim.weight_decay"}
    assert differences(theirs, of()) == {"optim.weight_decay": (ABSENT, 0.05)}


def test_an_option_at_its_default_is_no_difference_to_a_run_that_did_not_name_it():
    target = "mhprobe.gates.hard_concrete.HardConcreteGates"
    default = defaults_of(target)["beta"]
    silent, named, other = (
        of(gates={"relaxation": {"_target_": target, **beta}})
        for beta in ({}, {"beta": default}, {"beta": default / 2})
    )
    assert differences(silent, named) == differences(named, silent) == {}
    assert differences(silent, other) == {"gates.relaxation.beta": (ABSENT, default / 2)}
    assert differences(other, silent) == {"gates.relaxation.beta": (default / 2, ABSENT)}


def test_more_epochs_need_no_word_and_say_what_they_are():
    (line,) = allowed_differences(of(), of(trainer={"max_epochs": 3}), [], PATH)
    assert "trainer.max_epochs was 2, is 3" in line and "not the run" in line


def test_a_checkpoint_that_says_nothing_is_refused_unless_asked_for():
    assert "run was unknown" in answer(None, of())
    assert allowed_differences(None, of(), ["run"], PATH)


def stopped_early(patience: int | None) -> Any:
    """Facts as a checkpoint keeps them, of a run with or without early stopping."""
    stops = [] if patience is None else [EarlyStopping(None, patience)]
    return SameRun(of()).facts(
        L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=stops)
    )


def test_early_stopping_is_neither_dropped_nor_changed_in_silence():
    """A run that went on without it once trained to its last epoch."""
    key = "early_stopping.patience"
    for ours, now in ((None, ABSENT), (3, "3")):
        assert f"{key} was 2, is {now}" in (line := answer(stopped_early(2), stopped_early(ours)))
        assert f"resume.allow=[{key}]" in line and allowed_differences(
            stopped_early(2), stopped_early(ours), [key], PATH
        )
    assert f"{key} was {ABSENT}, is 2" in answer(stopped_early(None), stopped_early(2))
    assert differences(stopped_early(2), stopped_early(2)) == {}


def test_a_permission_for_nothing_is_a_mistake():
    assert "optim.lrr" in answer(of(), of(), "optim.lrr")


def test_weights_are_known_by_their_content_not_their_place(tmp_path):
    for name, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(data)
    a, b, c = (of(weights=str(tmp_path / name)) for name in "abc")
    assert a == b != c


def checkpoint(folder: Path, time: int) -> Path:
    path = folder / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (time, time))
    return path


def sweep(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "multirun.yaml").touch()
    return folder


def test_last_is_looked_for_in_the_own_folder_then_beside_it(tmp_path):
    old, new = checkpoint(tmp_path / "10-00", 1), checkpoint(tmp_path / "11-00", 2)
    checkpoint(sweep(tmp_path / "sweep_11-30") / "0", 3)  # a job of a sweep is another run
    assert earlier(tmp_path, tmp_path / "12-00") == [new, old]
    assert earlier(tmp_path, tmp_path.parent / "elsewhere") == [new, old]
    own = checkpoint(tmp_path / "12-00", 0)
    assert earlier(tmp_path, tmp_path / "12-00") == [own]


def test_a_part_of_a_study_goes_on_from_the_same_part(tmp_path):
    checkpoint(tmp_path / "10-00", 5)
    part = checkpoint(tmp_path / "10-00" / "pruned_4", 1)
    checkpoint(tmp_path / "10-00" / "scratch_4", 2)
    assert earlier(tmp_path, tmp_path / "12-00" / "pruned_4") == [part]


@pytest.mark.parametrize("named", ["of the jobs", "of several experiments", "given by hand"])
def test_a_job_of_a_sweep_goes_on_from_its_own_number_in_an_earlier_sweep(tmp_path, named):
    """runs: the folder of the job's own name.

    Where the sweep has another, its own runs are still no others'.
    """
    runs = tmp_path / "digits_vit"
    beside = {"of the jobs": runs, "of several experiments": tmp_path / "vit_and_1_more"}.get(
        named, tmp_path / "x" / "y"
    )
    checkpoint(runs / "09-00", 9)
    first = [checkpoint(sweep(beside / "a") / "0", 0), checkpoint(beside / "a" / "1", 1)]
    now = sweep(beside / "b")
    checkpoint(now / "0", 5)  # what the job before this one has just written
    assert earlier(runs, now / "1") == [first[1]]
    assert earlier(runs, sweep(beside / "c") / "0")[-1] == first[0]
    assert (
        earlier(runs, now / "2") == []
    )  # a job that no earlier sweep had: not a run that was none of a sweep


@pytest.mark.parametrize(
    ("typed", "meant"), [("optim.weight_decy", "optim.weight_decay"), ("optm", "optim")]
)
def test_a_misspelt_name_to_allow_is_answered_with_the_nearest(typed, meant):
    line = answer(of(), of(), typed)
    assert f"no part of a run is called {typed}; did you mean {meant}? parts: " in line
    assert "data.batch_size" not in line and len(line) < 250  # not every setting of the run


def test_a_name_to_allow_that_is_like_none_is_answered_with_the_parts():
    line = answer(of(), of(), "xyz")
    assert "did you mean" not in line and "optim" in line.partition("parts: ")[2]
