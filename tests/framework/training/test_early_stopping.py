"""A training ends when validation accuracy has not risen for as many validations as patience says."""

from __future__ import annotations

import logging

import lightning as L
import pytest
import torch
from torch import nn

from mhprobe.errors import UserError
from mhprobe.framework.training.ends import EarlyStopping

RISES_UNTIL_THIRD = [0.1, 0.4, 0.5, 0.5, 0.2, 0.5, 0.3, 0.9]


class Net(L.LightningModule):
    """Its validation accuracies are given."""

    penalty: object = None

    def __init__(self, accuracies: list[float]) -> None:
        super().__init__()
        self.one, self.accuracies = nn.Linear(1, 1), accuracies

    def training_step(self, batch, _):
        return self.one(batch).sum()

    def validation_step(self, batch, _):
        self.log("val/accuracy", torch.tensor(self.accuracies[self.current_epoch]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(2, 1))

    val_dataloader = train_dataloader


class Priced(Net):
    penalty = "a price of open heads"


def fit(net: Net, folder, *callbacks: L.Callback, resume: bool = False, epochs: int = 8) -> int:
    """How many epochs were trained; what the run leaves is in ``folder``."""
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=list(callbacks),
    )
    trainer.fit(net, ckpt_path=folder / "last.ckpt" if resume else None)
    trainer.save_checkpoint(folder / "last.ckpt")
    return trainer.current_epoch


@pytest.mark.parametrize(("patience", "epochs"), [(1, 4), (2, 5), (4, 7), (5, 8)])
def test_it_ends_after_so_many_validations_without_a_new_best(patience, epochs, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "mhprobe"):
        assert fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, patience)) == epochs
    said = [
        record.getMessage() for record in caplog.records if "has not risen" in record.getMessage()
    ]
    assert len(said) == (epochs < 8)
    assert all(
        f"for {patience} validations: the training ends after epoch {epochs} of 8" in line
        for line in said
    )


def test_without_it_all_epochs_are_trained(tmp_path):
    """Negative control."""
    assert fit(Net(RISES_UNTIL_THIRD), tmp_path) == 8


def test_a_run_that_goes_on_has_as_little_patience_left_as_it_had(tmp_path):
    assert (
        fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, 2), epochs=4) == 4
    )  # one validation without a rise
    assert fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, 2), resume=True) == 5


def test_a_run_that_has_ended_trains_no_further_unless_patience_grew(tmp_path):
    assert fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, 2)) == 5
    assert fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, 2), resume=True) == 5
    assert fit(Net(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None, 3), resume=True) == 6


def test_a_penalty_and_no_patience_are_refused(tmp_path):
    with pytest.raises(
        UserError, match="patience: expected a number of validations from 1 on, got 0"
    ):
        EarlyStopping(None, 0)
    with pytest.raises(UserError, match=r"penalty closes heads"):
        fit(Priced(RISES_UNTIL_THIRD), tmp_path, EarlyStopping(None))
