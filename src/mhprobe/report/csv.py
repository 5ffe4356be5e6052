"""The log that is always there: losses and learning rates of training, as ``logs/version_<n>/metrics.csv``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.loggers import CSVLogger


def csv_logger(folder: Path) -> CSVLogger:
    """Lightning's CSVLogger; a run that goes on in the same folder gets the next version."""
    return CSVLogger(save_dir=folder, name="logs")
