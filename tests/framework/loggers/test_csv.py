"""The log that is always there, and what logger=csv and logger=wandb switch on."""

from __future__ import annotations

import pytest

import runs
from mhprobe.framework.loggers.others import csv_logger


def test_a_run_that_goes_on_in_its_folder_keeps_its_first_log(tmp_path):
    for loss in (0.5, 0.25):
        logger = csv_logger(tmp_path)
        logger.log_metrics({"train/loss": loss}, step=3)
        logger.finalize("success")
    for version, loss in enumerate((0.5, 0.25)):
        header, row = (tmp_path / f"logs/version_{version}/metrics.csv").read_text().splitlines()
        assert dict(zip(header.split(","), row.split(","), strict=True)) == {
            "step": "3",
            "train/loss": str(loss),
        }


@pytest.mark.parametrize(("choice", "loggers"), [("csv", {"csv"}), ("wandb", {"csv", "wandb"})])
def test_csv_is_always_on(choice, loggers):
    assert set(runs.composed("train", f"logger={choice}").logger) == loggers
