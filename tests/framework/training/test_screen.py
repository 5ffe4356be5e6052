"""What the screen says of a training."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from mhprobe.framework.training.screen import ShowsTraining


def end_of_epoch(shows: ShowsTraining, number: int, accuracy: float, caplog) -> str:
    trainer = SimpleNamespace(
        current_epoch=number,
        max_epochs=3,
        sanity_checking=False,
        state=SimpleNamespace(fn="fit"),
        num_val_batches=[1],
        callback_metrics={"val/accuracy": accuracy, "val/loss": 1.0},
    )
    shows.on_validation_start(trainer, None)
    with caplog.at_level(logging.INFO, logger="mhprobe"):
        shows.on_validation_end(trainer, None)
    return caplog.messages[-1]


def test_a_run_that_goes_on_still_knows_the_best_epoch_before_it_stopped(caplog):
    first, second = ShowsTraining(), ShowsTraining()
    assert "best epoch 1" in end_of_epoch(first, 0, 0.9, caplog)
    assert "best epoch 2" in end_of_epoch(
        second, 1, 0.8, caplog
    )  # without the state it is the only one
    second = ShowsTraining()
    second.load_state_dict(first.state_dict())
    assert "best epoch 1" in end_of_epoch(second, 1, 0.8, caplog)
    assert "best epoch 3" in end_of_epoch(second, 2, 0.95, caplog)
