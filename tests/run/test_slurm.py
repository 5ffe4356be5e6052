"""The scripts of launch/ are sound, and a job that SLURM stops saves, is queued again and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import lightning as L
import pytest

import runs
from mhprobe.run.quiet import quiet
from mhprobe.weights.checkpoint import load_checkpoint

LAUNCH = Path(__file__).parents[2] / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir() if path.read_text().startswith("#!"))

# stand-ins: one task on this machine, told and killed as srun does it, and a note instead of a queue
SRUN = """#!/usr/bin/env bash
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1
"$@" &
trap 'kill -KILL $!' TERM
trap 'kill -USR1 $!' USR1
wait $!
while kill -0 $! 2>/dev/null; do wait $!; done
wait $!
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" >> queued
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash_and_say_how_they_are_used(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# ")
    assert any("set -" in line or "source " in line for line in lines)
    assert "$@" in script.read_text() and "/home/" not in script.read_text()


def start(cwd: Path, command: str, *overrides: str) -> subprocess.Popen[str]:
    """launch/slurm_<command>.sh as SLURM runs it, one task on one machine."""
    cluster = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_NAME": "mhprobe"}
    python = Path(sys.executable).parent
    environment = {**runs.environment(), **cluster, "SLURM_SUBMIT_DIR": str(LAUNCH.parent)}
    environment["PATH"] = f"{cwd / 'bin'}:{python}:{environment['PATH']}"
    return subprocess.Popen(
        ["bash", str(LAUNCH / f"slurm_{command}.sh"), *overrides],
        cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_run_on_a_machine_that_has_slurm_is_not_told_to_use_it(cluster, monkeypatch):
    monkeypatch.setenv("PATH", str(cluster / "bin"))
    plain = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="`srun` command is available"):
            L.Trainer(**plain)
        quiet()
        L.Trainer(**plain)


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


TRAINING = [*runs.TINY, "masking=none", "measure=[]", "checkpoint.every_n_steps=1", "trainer.max_epochs=100000"]


@pytest.mark.slow
def test_a_training_whose_time_is_over_is_queued_again_and_goes_on_until_it_is_cancelled(cluster):
    job = start(cluster, "train", *TRAINING)
    last = cluster / "outputs" / "slurm" / "7" / "checkpoints" / "last.ckpt"
    runs.wait(lambda: last.exists() or job.poll() is not None)
    job.send_signal(signal.SIGUSR1)
    _, said = job.communicate(timeout=runs.TIMEOUT)
    assert job.returncode == 143 and said == STOPPED, said
    assert (cluster / "queued").read_text() == "requeue 7\n"
    reached = load_checkpoint(last)["global_step"]

    before = last.stat().st_mtime_ns
    again = start(cluster, "train", *TRAINING)
    runs.wait(lambda: last.stat().st_mtime_ns > before or again.poll() is not None)
    for pid in (again.pid, *tasks(again.pid)):  # as scancel: the script and the tasks, not srun
        os.kill(pid, signal.SIGTERM)
    out, said = again.communicate(timeout=runs.TIMEOUT)
    assert again.returncode == 143 and said == STOPPED, said
    assert "resuming from outputs/slurm/7/checkpoints/last.ckpt" in out
    assert load_checkpoint(last)["global_step"] > reached
    assert (cluster / "queued").read_text() == "requeue 7\n"  # who cancels a job does not want it again


@pytest.mark.slow
def test_what_ends_by_itself_is_not_queued_again(cluster):
    job = start(cluster, "train", "optim.lrr=1")
    assert "did you mean lr" in job.communicate(timeout=runs.TIMEOUT)[1]
    assert job.returncode == 2 and not (cluster / "queued").exists()


STOPPED = "mhprobe: stopped (SIGTERM); go on with ckpt_path=last\n"


def tasks(script: int) -> list[int]:
    """What the stand-in for srun has started."""
    return [task for srun in children(script) for task in children(srun)]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
