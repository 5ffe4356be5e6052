"""The best epoch of a run that goes on is one of this run, wherever its checkpoints were moved."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import mhprobe.train
import runs
from mhprobe.weights.checkpoint import load_checkpoint

RISES = [
    *("masking=none", "measure=[]", "trainer.max_epochs=4", "optim.lr=0.02"),
    *("data.limit_train=400", "data.augment.mixup=0", "backbone.patch_size=4", "backbone.depth=1"),
]
WORSE = ["optim.lr=30", "resume.allow=[optim,early_stopping]"]


def run(folder: Path, *more: str) -> Path:
    folder.mkdir()
    mhprobe.train.run(
        runs.config("train", folder.parent, *RISES, f"out={folder.parent}", *more), folder
    )
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run whose accuracy rises to its last epoch."""
    folder = run(
        tmp_path_factory.mktemp("best") / "whole", "+callback=[every_epoch,early_stopping]"
    )
    assert load_checkpoint(best(folder))["epoch"] == 3
    return folder


def best(folder: Path) -> Path:
    return folder / "checkpoints" / "best.ckpt"


def epoch(folder: Path, number: int) -> Path:
    return folder / "checkpoints" / f"epoch_{number}.ckpt"


def accuracy(file: Path) -> float:
    return load_checkpoint(file)["results"]["val/accuracy"]


def test_the_checkpoint_of_an_epoch_counts_this_epoch(whole):
    for number in range(4):
        callbacks = load_checkpoint(epoch(whole, number))["callbacks"]
        counted = [
            *(
                state["best_model_score"]
                for key, state in callbacks.items()
                if key.startswith("Best")
            ),
            *(
                state["best_score"]
                for key, state in callbacks.items()
                if key.startswith("EarlyStopping")
            ),
        ]
        assert [float(score) for score in counted] == pytest.approx(
            2 * [accuracy(epoch(whole, number))]
        )


def test_after_the_folder_was_moved_the_best_epoch_still_is(whole):
    moved = whole.parent / "moved"
    shutil.copytree(whole, moved)
    (hidden := whole.parent / "hidden").mkdir()
    whole.rename(hidden / "whole")
    try:
        more = run(
            whole.parent / "more",
            f"ckpt_path={moved}/checkpoints/last.ckpt",
            *WORSE,
            "trainer.max_epochs=5",
        )
    finally:
        (hidden / "whole").rename(whole)
    assert load_checkpoint(more / "checkpoints" / "last.ckpt")["epoch"] == 4
    assert load_checkpoint(best(more))["epoch"] == 3
    assert accuracy(best(more)) == accuracy(best(whole))


def test_going_on_from_an_earlier_epoch_no_later_one_of_the_old_run_is_taken(whole, caplog):
    with caplog.at_level(logging.WARNING, "mhprobe"):
        other = run(whole.parent / "other", f"ckpt_path={epoch(whole, 1)}", *WORSE)
    assert accuracy(best(other)) == max(
        accuracy(best(other)), accuracy(other / "checkpoints" / "last.ckpt")
    )
    assert accuracy(best(other)) < accuracy(best(whole))
    assert "chosen are epochs from here on" in caplog.text


def test_a_training_that_ends_before_its_first_validation_keeps_its_last_weights_and_says_so(
    tmp_path, caplog
):
    """It once ended in "no file best.ckpt"."""
    ended = run(tmp_path / "ended", "+trainer.max_time='00:00:00:00'")
    assert "ended before its first validation: the last weights are taken" in caplog.text
    assert (ended / "model.safetensors").is_file() and not best(ended).exists()
