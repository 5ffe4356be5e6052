"""The weights of every epoch stay."""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks
from torch import nn

from mhprobe.framework.training.checkpoints import EveryEpoch


class Net(L.LightningModule):
    """Its weight is the number of steps that it has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.one.weight)

    def training_step(self, batch, _):
        return -self.one(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(2, 1))


def fit(folder, epochs, *callbacks, ckpt_path=None):
    callbacks = [EveryEpoch(SimpleNamespace(folder=folder)), *callbacks]
    L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    ).fit(Net(), ckpt_path=ckpt_path)
    files = sorted((folder / "checkpoints").iterdir())
    return {file.stem: torch.load(file)["state_dict"]["one.weight"].item() for file in files}


def test_each_epoch_leaves_its_weights(tmp_path):
    assert fit(tmp_path, 3) == {"epoch_0": 2, "epoch_1": 4, "epoch_2": 6}  # two steps each


def test_a_run_goes_on_from_any_of_them(tmp_path):
    fit(tmp_path / "a", 3)
    assert fit(tmp_path / "b", 4, ckpt_path=tmp_path / "a" / "checkpoints" / "epoch_1.ckpt") == {
        "epoch_2": 6,
        "epoch_3": 8,
    }


@pytest.mark.skipif(
    not hasattr(callbacks, "EMAWeightAveraging"), reason="lightning averages weights from 2.6 on"
)
def test_where_weights_are_averaged_the_average_stays(tmp_path):
    kept = fit(tmp_path, 2, callbacks.EMAWeightAveraging(decay=0.5))
    assert kept["epoch_0"] < 2 and kept["epoch_0"] < kept["epoch_1"] < 4
