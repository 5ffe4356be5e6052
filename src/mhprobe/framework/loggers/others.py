"""Lightning's own loggers, writing into the run's folder: they get numbers and settings, no tables and figures.

The CSV file is always there: losses and learning rates of training, as
``logs/version_<n>/metrics.csv``.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger

from mhprobe.errors import UserError


def csv_logger(folder: Path) -> CSVLogger:
    """Lightning's CSVLogger; a run that goes on in the same folder gets the next version."""
    return CSVLogger(save_dir=folder, name="logs")


def tensorboard_logger(folder: Path) -> TensorBoardLogger:
    """UserError where TensorBoard is not installed."""
    return _create(
        TensorBoardLogger, "tensorboard", save_dir=folder, name="tensorboard", version=""
    )


def mlflow_logger(folder: Path, tracking_uri: str | None = None) -> MLFlowLogger:
    """UserError where MLflow is not installed.

    tracking_uri: of a server; None for files in ``folder/mlflow``.
    """
    where = tracking_uri or (Path(folder).resolve() / "mlflow").as_uri()
    run = Path(folder).resolve()
    return _create(
        MLFlowLogger,
        "mlflow",
        experiment_name=run.parent.name,
        run_name=run.name,
        tracking_uri=where,
    )


def _create(logger: Any, package: str, **settings: Any) -> Any:
    try:
        return logger(**settings)
    except ModuleNotFoundError:
        raise UserError(f"logger: {package} is not installed; pip install {package}.") from None
