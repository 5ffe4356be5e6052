"""What stays of a training with a running average of the weights is the average, of the gates, too."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

import mhprobe.train
import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import trainers
from mhprobe.weights.checkpoint import load_checkpoint, load_weights

averaging = pytest.importorskip(
    "mhprobe.framework.training.averaging",
    reason="this lightning cannot average weights",
    exc_type=ImportError,
)

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
    mhprobe.train.run(
        runs.config("train", folder.parent, f"out={folder.parent}", *overrides), folder
    )
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
    assert not torch.allclose(
        average, now, atol=0.5
    )  # negative control: the gates of the last step are others


def test_the_history_of_gates_is_of_those_that_are_kept(whole):
    """It once drew the gates of the last step, which nothing validates."""
    table, history = (
        runs.rows(whole / "tables" / f"{name}.csv") for name in ("gates", "gate_history")
    )
    amounts = [float(value) for name, value in history[-1].items() if "." in name]
    assert amounts == pytest.approx([float(row["open"]) for row in table], abs=1e-6)


def test_a_run_that_goes_on_from_its_very_last_step_keeps_the_average(whole):
    again = train(whole.parent / "again", *CLOSING, f"ckpt_path={whole}/checkpoints/last.ckpt")
    assert gates(again / "model.safetensors") == gates(whole / "model.safetensors")
    ours, theirs = (
        load_weights(folder / "model.safetensors")[0].state_dict() for folder in (again, whole)
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


FAST = [
    "optim.lr=0.02",
    "optim.ema=0.95",
    "data.limit_train=400",
    "data.augment.mixup=0",
    "backbone.patch_size=4",
]
WATCHED = [*FAST, "masking=none", "measure=[activation_norm]", "optim.warmup_epochs=0"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """A run of an average that lags behind."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    return train(folder, *WATCHED, "probe.every_n_epochs=1", "+callback=[settling,every_epoch]")


def test_heads_are_scored_on_the_weights_that_are_validated(watched):
    rows = [
        row for row in runs.rows(watched / "tables" / "settling.csv") if float(row["share"]) == 0
    ]
    assert len(rows) == 2
    for row in rows:
        validated = load_checkpoint(watched / "checkpoints" / f"epoch_{row['epoch']}.ckpt")[
            "results"
        ]
        assert float(row["accuracy"]) == pytest.approx(validated["val/accuracy"])
        assert float(row["loss"]) == pytest.approx(validated["val/loss"], rel=1e-5)


def test_a_history_along_steps_would_be_of_other_weights(tmp_path):
    with pytest.raises(UserError, match=r"probe\.every_n_steps: .*expected probe\.every_n_epochs"):
        runs.config("train", tmp_path, "optim.ema=0.9", "probe.every_n_steps=12")


class Indexed(L.LightningModule):
    """A layer beside indices of positions, as a Swin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(1, 1)
        self.register_buffer("index", torch.arange(200), persistent=False)

    def training_step(self, batch, _):
        return self.one(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 1))


def test_indices_of_positions_are_not_averaged(tmp_path):
    """Each step once took them in part for the number below: .9 * 57 + .1 * 57 is less than 57."""
    model, average = Indexed(), averaging.Average(0.9)
    begin = model.one.weight.flatten().tolist()
    L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[average],
    ).fit(model)
    assert torch.equal(model.index, torch.arange(200))
    # the weights are: 1 step is taken as it is, of 3 more .1, .19 and .271 have arrived
    ((start, end),) = zip(begin, model.one.weight.flatten().tolist(), strict=True)
    assert end == pytest.approx(start - 0.1 - 0.1 * (0.1 + 0.19 + 0.271))


def test_a_lightning_that_cannot_average_is_named_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "mhprobe.framework.training.averaging", None)
    with pytest.raises(UserError, match=r"optim.ema: expected lightning 2.6 or newer"):
        trainers._build_average(0.9)
    monkeypatch.undo()
    assert isinstance(trainers._build_average(0.9), averaging.Average)  # the control
