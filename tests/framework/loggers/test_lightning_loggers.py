"""Lightning's own loggers get a run's numbers; one that is not installed is named."""

from __future__ import annotations

import pytest

from mhprobe.errors import UserError
from mhprobe.framework.loggers import others as loggers
from mhprobe.report.report import Report


def test_tensorboard_holds_the_numbers_of_a_run(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = loggers.tensorboard_logger(tmp_path)
    logger.log_hyperparams({"seed": 3})
    logger.log_metrics({"train/loss": 0.5}, step=7)
    report = Report(tmp_path, loggers=[logger])
    report.add_metrics({"test/accuracy": 0.9})  # no dashboard: a file, and no error
    logger.save()
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(7, 0.5)]


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_logger_that_is_not_installed_is_named(tmp_path, monkeypatch, package):
    def missing(**_):
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(
        loggers, {"tensorboard": "TensorBoardLogger", "mlflow": "MLFlowLogger"}[package], missing
    )
    with pytest.raises(UserError, match=f"{package} is not installed; pip install {package}"):
        getattr(loggers, f"{package}_logger")(tmp_path)
