"""A W&B run holds what the report was told, and no server can stop or hang a run."""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning.pytorch.utilities import rank_zero_only
from packaging.version import Version

import runs
from curves import curve
from mhprobe.framework.loggers.wandb import RunLogger
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report.measured import of_curves
from mhprobe.report.report import Dashboard, Report
from results import add_measure

LAYOUT = HeadLayout(tuple(HeadSite(f"blocks.{i}.attn", 0, i, 3, 4) for i in range(2)))


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch, tmp_path):
    """No key, no settings and no service from outside; wandb reads the environment once per session."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)
    wandb.teardown()
    yield
    wandb.teardown()


CURVES = [
    curve("head_max", [0, 2, 4, 6], [0.9, 0.7, 0.5, 0.3]),
    curve("random", [0, 2, 4, 6], [0.9, 0.7, 0.5, 0.3], chosen_on=None, seeds=(0, 1, 2)),
]


def records(folder: Path) -> list[dict[str, Any]]:
    """All records of the one run in ``folder``, read back by wandb's own inspector."""
    if Version(wandb.__version__) < Version("0.31"):
        pytest.skip(f"wandb {wandb.__version__} cannot print what it recorded; 0.31 can")
    (file,) = folder.glob("wandb/*run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def history(folder: Path) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records(folder) if record["type"] == "history"]


def said(caplog) -> list[str]:
    """What a user gets to read: our own lines."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("mhprobe")]


SAID = {"label": "importance (nats)", "unit": "nats", "larger": "the head matters more"}


def log_everything(logger: RunLogger, folder: Path) -> None:
    logger.log_metrics({"train/loss": 0.5}, step=3)
    report = Report(folder, LAYOUT, [logger])
    add_measure(report, "gate_importance", "per_head", {"value": torch.arange(6.0)}, **SAID)
    report.add({"masking_curves": of_curves(CURVES, [], LAYOUT, chance=0.1)["masking_curves"]})
    report.add_metrics({"test/accuracy": 0.875})
    for name in ("report.html", "model.safetensors", "model.json"):
        (folder / name).write_text(f"<p>{name}</p>")
    report.close()


def test_an_offline_run_holds_metrics_tables_figures_and_curves(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "digits_vit" / "2026-01-01"
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "overrides.yaml").write_text("- seed=3\n")
    logger = RunLogger(folder, job_type="train", tags=["t"], model_aliases=["best"])
    for step, accuracy in enumerate([0.4, 0.9, 0.6]):
        logger.log_metrics({"val/accuracy": accuracy}, step=step)
    log_everything(logger, folder)
    assert said(caplog) == []

    found = records(folder)
    (run,) = (record["run"] for record in found if record["type"] == "run")
    assert (run["project"], run["run_group"], run["job_type"]) == ("mhprobe", "digits_vit", "train")
    assert (
        run["display_name"] == "digits_vit/2026-01-01 seed=3"
        and run["tags"] == ["t"]
        and "seed=3" in run["notes"]
    )
    artifacts = {
        record["artifact"]["name"]: record["artifact"]
        for record in found
        if record["type"] == "artifact"
    }
    assert artifacts["digits_vit-report"]["type"] == "report"
    assert (
        artifacts["digits_vit-model"]["type"] == "model"
        and "best" in artifacts["digits_vit-model"]["aliases"]
    )
    rules = {
        record["metric"].get("name"): record["metric"]
        for record in found
        if record["type"] == "metric"
    }
    assert rules["val/accuracy"]["summary"] == {"max": True}
    assert rules["masking/head_max/test/accuracy"]["summary"] == {"none": True}
    summary = {}
    for record in found:
        if record["type"] == "summary":
            summary.update(record["summary"]["update"])
    assert summary["test/accuracy"] == 0.875

    steps = history(folder)
    (page,) = (step["report.path"] for step in steps if "report.path" in step)
    (media,) = folder.glob(f"wandb/*run-*/files/{page}")
    assert "<p>report.html</p>" in media.read_text()
    (chart,) = folder.glob("wandb/*run-*/files/media/table/charts/masking_curves*.json")
    lines = json.loads(chart.read_text())
    assert lines["columns"] == ["step", "lineKey", "lineVal"] and len(lines["data"]) == 8
    assert any(step.get("train/loss") == 0.5 and step["trainer/global_step"] == 3 for step in steps)
    for name in ("gate_importance", "masking_curves"):
        (image,) = (step for step in steps if f"figures/{name}.path" in step)
        (media,) = folder.glob(f"wandb/*run-*/files/{image[f'figures/{name}.path']}")
        assert media.read_bytes() == (folder / "figures" / f"{name}.png").read_bytes()
        (table,) = (step for step in steps if f"tables/{name}.path" in step)
        (media,) = folder.glob(f"wandb/*run-*/files/{table[f'tables/{name}.path']}")
        content = json.loads(media.read_text())
        header, *lines = (folder / "tables" / f"{name}.csv").read_text().splitlines()
        assert content["columns"] == header.split(",") and len(content["data"]) == len(lines) > 0

    (image,) = (step for step in steps if "figures/gate_importance.path" in step)
    assert (
        "importance (nats). Larger means: the head matters more. A square per head"
        in json.dumps(image)
    )
    (table,) = (step for step in steps if "tables/results.path" in step)
    (media,) = folder.glob(f"wandb/*run-*/files/{table['tables/results.path']}")
    content = json.loads(media.read_text())
    told = {row[0]: dict(zip(content["columns"], row, strict=True)) for row in content["data"]}
    assert [told["gate_importance"][key] for key in ("label", "unit", "larger")] == list(
        SAID.values()
    )
    assert told["gate_importance"]["caption"].startswith("A square per head")
    assert told["masking_curves"]["larger"] == "the masked heads are needed less"


def test_curves_share_an_axis_and_random_ones_log_their_mean(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = RunLogger(tmp_path / "run")
    logger.add_curves(CURVES)
    logger.finish()
    steps = history(tmp_path / "run")
    for name in ("head_max", "random"):
        points = [step for step in steps if f"masking/{name}/test/accuracy" in step]
        assert [step["masking/heads_masked"] for step in points] == [0, 2, 4, 6]
        assert [step[f"masking/{name}/test/accuracy"] for step in points] == pytest.approx(
            [0.9, 0.7, 0.5, 0.3]
        )
    metrics = [
        record["metric"] for record in records(tmp_path / "run") if record["type"] == "metric"
    ]
    axes = {metric.get("name"): metric.get("step_metric") for metric in metrics}
    assert (
        axes["masking/head_max/test/accuracy"]
        == axes["masking/random/test/loss"]
        == "masking/heads_masked"
    )


def test_two_jobs_of_one_process_are_two_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    sweep = tmp_path / "sweep_1"
    died = RunLogger(sweep / "0")  # never finished
    died.log_metrics({"job": 0.0})
    second = RunLogger(sweep / "1")
    second.log_metrics({"job": 1.0})
    second.finish()
    for job in (0, 1):
        assert [step["job"] for step in history(sweep / str(job)) if "job" in step] == [job]
        (run,) = (record["run"] for record in records(sweep / str(job)) if record["type"] == "run")
        assert run["run_group"] == "sweep_1"


def test_only_rank_zero_has_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = RunLogger(tmp_path / "run")
    assert isinstance(logger, Dashboard)
    logger.log_metrics({"train/loss": 0.5})
    logger.finish()
    assert wandb.run is None and not (tmp_path / "run").exists()


@pytest.fixture
def silent_server():
    """Accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("case", ["refused", "silent", "no key", "bad key"])
def test_no_server_stops_or_hangs_a_run(tmp_path, monkeypatch, caplog, silent_server, case):
    monkeypatch.setenv(
        "WANDB_BASE_URL", silent_server if case == "silent" else "http://127.0.0.1:9"
    )
    if case != "no key":
        monkeypatch.setenv("WANDB_API_KEY", "short" if case == "bad key" else "0" * 40)
    folder = tmp_path / "digits_vit" / "run"
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="mhprobe"):
        log_everything(RunLogger(folder, init_timeout=1, finish_timeout=1), folder)
    assert time.monotonic() - started < 30  # W&B's own limits are 90 s and none
    (message,) = said(caplog)
    assert message.startswith("W&B: ") and "wandb sync" in message and "\n" not in message
    assert (folder / "tables" / "gate_importance.csv").exists()
    # its telemetry, refused with the key, would say so three times after the run's last line
    assert not logging.getLogger("opentelemetry.sdk").isEnabledFor(logging.ERROR)
    offline = [
        file for file in folder.glob("wandb/offline-run-*/*.wandb") if file.parent.name in message
    ]
    assert len(offline) == 1


def test_any_experiment_name_gives_artifacts_and_a_command_to_paste(tmp_path, caplog):
    folder = tmp_path / "mein Lauf ü" / "run"
    with caplog.at_level(logging.WARNING, logger="mhprobe"):
        log_everything(RunLogger(folder, model_aliases=["best"]), folder)
    (message,) = said(
        caplog
    )  # that there is no key; once also that W&B takes no such artifact name
    (offline,) = folder.glob("wandb/offline-run-*")
    assert shlex.split(message)[-3:] == ["wandb", "sync", str(offline)]
    kinds = [
        record["artifact"]["type"] for record in records(folder) if record["type"] == "artifact"
    ]
    assert {"report", "model"} <= set(kinds)


class Answers(BaseHTTPRequestHandler):
    """Just enough of a W&B server for a run to start online.

    wait: seconds before an answer. cut: the connection ends in the middle of each answer.
    """

    wait = 0.0
    cut = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.closing.wait(self.wait)
        project = {"id": "p", "name": "mhprobe", "entity": {"id": "e", "name": "someone"}}
        bucket = {
            "id": "b",
            "name": "run1",
            "displayName": "d",
            "config": "{}",
            "project": project,
            "historyLineCount": 0,
        }
        answer = {
            "viewer": {
                "id": "v",
                "entity": "someone",
                "username": "someone",
                "flags": "{}",
                "teams": {"edges": []},
            },
            "serverInfo": {"cliVersionInfo": {}, "features": []},
            "upsertBucket": {"bucket": bucket, "inserted": True},
            "model": {"bucket": None},
        }
        body = json.dumps({"data": answer}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.cut else body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    """One that works until it is told otherwise."""

    class Kind(Answers):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Kind)
    server.closing = threading.Event()
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["dies", "no longer answers", "breaks off in its answers"])
def test_a_server_that_fails_in_the_middle_neither_stops_nor_hangs_a_run(
    tmp_path, caplog, capsys, server, fate
):
    folder = tmp_path / "digits_vit" / "run"
    logger = RunLogger(folder, init_timeout=10, finish_timeout=1)
    assert (
        said(caplog) == [] and "W&B: http://127.0.0.1" in capsys.readouterr().out
    )  # it was online
    if fate == "dies":
        server.shutdown()
        server.server_close()
    else:
        server.RequestHandlerClass.wait = 600 if fate == "no longer answers" else 0
        server.RequestHandlerClass.cut = fate == "breaks off in its answers"
    started = time.monotonic()
    log_everything(logger, folder)
    assert time.monotonic() - started < 60  # without finish_timeout it waits for ever
    (message,) = said(caplog)  # logging a table fails, once
    assert message.startswith("W&B: ") and "The run goes on" in message and "\n" not in message
    assert (folder / "tables" / "gate_importance.csv").exists() and (
        folder / "metrics.json"
    ).exists()
    wandb.teardown()  # as at the end of a process
    steps = history(folder)  # on disk, for `wandb sync`
    for name in ("figures/masking_curves.path", "masking/head_max/test/accuracy", "train/loss"):
        assert any(name in step for step in steps)


BREAKS = """
import os, signal, sys
from pathlib import Path
import wandb
from mhprobe.framework.loggers.wandb import RunLogger
from mhprobe.framework.run.cli import main

owner, name = {where}
whole = getattr(owner, name)

def breaks(*args, **kwargs):
    setattr(owner, name, whole)
    for pid in Path(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read_text().split():
        if "wandb-core" in Path(f"/proc/{{pid}}/cmdline").read_text():
            os.kill(int(pid), signal.SIGQUIT)  # Go answers it as it does a panic: with pages
            os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
            print("broken")
    return whole(*args, **kwargs)

setattr(owner, name, breaks)
sys.argv = ["mhprobe.probe", *{overrides}]
main("probe")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("(RunLogger, 'log_hyperparams')", "The run goes on"),
        ("(wandb, 'init')", "Recording offline"),
    ],
    ids=["on the way", "at the start"],
)
def test_a_service_of_its_own_that_breaks_costs_a_line(tmp_path, monkeypatch, where, words):
    """As it does where a server's answer has no run in it."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    tiny = [
        *runs.known("probe", runs.TINY),
        "weights=random",
        "measure=[]",
        "logger=wandb",
        "hydra.run.dir=run",
    ]
    result = runs.python(BREAKS.format(where=where, overrides=tiny), cwd=tmp_path)
    assert result.code == 0 and "broken" in result.out, result.err
    told = [line for line in result.err.splitlines() if line.strip()]
    assert len(told) == 1 and told[0].startswith("W&B: ") and words in told[0], result.err
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.slow
def test_a_real_command_leaves_an_offline_run_that_holds_all_of_it(tmp_path, monkeypatch):
    import mhprobe.train

    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "a_group" / "a_run"
    (folder / "config").mkdir(parents=True)
    small = ["data.limit_test=40", "data.limit_train=64", "data.limit_val=20", "masking.steps=1"]
    small += ["trainer.log_every_n_steps=1"]
    given = ["logger=wandb", "measure=[gate_importance,cka]", "trainer.max_epochs=1", *small]
    mhprobe.train.run(runs.config("train", tmp_path, *given), folder)
    wandb.teardown()

    found = records(folder)
    (run,) = (record["run"] for record in found if record["type"] == "run")
    assert (run["run_group"], run["job_type"]) == ("a_group", "train")
    assert len(run["tags"]) >= 1 and run["display_name"] == "a_group/a_run"
    settings: dict[str, Any] = {}
    for record in found:
        if record["type"] == "config":
            settings.update(record["config"]["update"])
    assert (
        settings["backbone"]["depth"] == 2
        and settings["data"]["limit_test"] == 40
        and settings["command"] == "train"
    )
    steps = history(folder)
    logged = {key for step in steps for key in step}
    tables, figures = (
        {path.stem for path in (folder / name).iterdir()} for name in ("tables", "figures")
    )
    assert tables and {f"tables/{name}.path" for name in tables} <= logged
    assert figures and {f"figures/{name}.path" for name in figures} <= logged
    assert {"report.path", "val/accuracy", "masking/heads_masked"} <= logged
    # the optimizer has a group for each layer and weight decay; a reader gets one curve
    assert {key for key in logged if key.lower().startswith("lr")} == {"lr/network"}
    assert list(folder.glob("wandb/*run-*/files/media/table/charts/masking_curves*.json"))
    (page,) = (step["report.path"] for step in steps if "report.path" in step)
    (media,) = folder.glob(f"wandb/*run-*/files/{page}")
    assert 'id="grid"' in media.read_text()  # with the atlas
    assert {record["artifact"]["type"] for record in found if record["type"] == "artifact"} >= {
        "report"
    }
