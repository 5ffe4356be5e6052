"""What stays of a training with a running average of the weights is the average, of the gates, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mhprobe.train
import runs
from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_checkpoint, load_weights

# gates close so fast that the average of them stays open
CLOSING = [
    "data.batch_size=8",
    "gates=hard_concrete",
    "gates.penalty.weight=0.3",
    "gates.lr=0.5",
    "optim.ema=0.9",
    *runs.SHORT,
]


def train(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    mhprobe.train.run(runs.config("train", folder.parent, f"out={folder.parent}", *overrides), folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("average") / "whole", *CLOSING)


def gates(file: Path) -> list[float]:
    return load_weights(file)[1]["gates"]


def test_a_checkpoint_is_loaded_with_the_averaged_gates(whole):
    last = whole / "checkpoints" / "last.ckpt"
    assert gates(last) == gates(whole / "model.safetensors")
    state = load_checkpoint(last)
    average, now = (state[key]["gates.log_alpha"] for key in ("state_dict", "current_model_state"))
    assert not torch.allclose(average, now, atol=0.5)  # negative control: the gates of the last step are others


def test_a_run_that_goes_on_from_its_very_last_step_keeps_the_average(whole):
    again = train(whole.parent / "again", *CLOSING, f"ckpt_path={whole}/checkpoints/last.ckpt")
    assert gates(again / "model.safetensors") == gates(whole / "model.safetensors")
    ours, theirs = (load_weights(folder / "model.safetensors")[0].state_dict() for folder in (again, whole))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


FAST = ["optim.lr=0.02", "optim.ema=0.95", "data.limit_train=400", "data.augment.mixup=0", "backbone.patch_size=4"]
WATCHED = [*FAST, "masking=none", "measure=[activation_norm]", "optim.warmup_epochs=0"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """A run of an average that lags behind."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    return train(folder, *WATCHED, "probe.every_n_epochs=1", "+callback=[settling,every_epoch]")


def test_heads_are_scored_on_the_weights_that_are_validated(watched):
    rows = [row for row in runs.rows(watched / "tables" / "settling.csv") if float(row["share"]) == 0]
    assert len(rows) == 2
    for row in rows:
        validated = load_checkpoint(watched / "checkpoints" / f"epoch_{row['epoch']}.ckpt")["results"]
        assert float(row["accuracy"]) == pytest.approx(validated["val/accuracy"])
        assert float(row["loss"]) == pytest.approx(validated["val/loss"], rel=1e-5)


def test_a_history_along_steps_would_be_of_other_weights(tmp_path):
    with pytest.raises(UserError, match=r"probe\.every_n_steps: .*expected probe\.every_n_epochs"):
        runs.config("train", tmp_path, "optim.ema=0.9", "probe.every_n_steps=12")
