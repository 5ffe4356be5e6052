"""The scripts of launch/ are sound, and a job that SLURM stops saves, is queued again and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runs
from mhprobe.weights.checkpoint import load_checkpoint

LAUNCH = Path(__file__).parents[2] / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir() if path.read_text().startswith("#!"))

# stand-ins: one task on this machine, as srun starts it, and a note instead of a queue
SRUN = """#!/usr/bin/env bash
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1
exec "$@"
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


@pytest.mark.slow
def test_a_stopped_training_is_queued_again_and_goes_on(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    command = [*runs.TINY, "masking=none", "measure=[]", "checkpoint.every_n_steps=1"]
    job = start(tmp_path, "train", *command, "trainer.max_epochs=100000")
    last = tmp_path / "outputs" / "slurm" / "7" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + runs.TIMEOUT
    while not last.exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    _, said = job.communicate(timeout=runs.TIMEOUT)
    assert job.returncode == 143 and "Traceback" not in said, said
    assert (tmp_path / "queued").read_text() == "requeue 7\n"
    reached = load_checkpoint(last)

    again = start(
        tmp_path, "train", *command, f"trainer.max_epochs={reached['epoch'] + 1}", "resume.allow=[trainer.max_epochs]"
    )
    out, said = again.communicate(timeout=runs.TIMEOUT)
    assert again.returncode == 0, said
    assert "resuming from outputs/slurm/7/checkpoints/last.ckpt" in out
    assert (
        load_checkpoint(last)["global_step"] >= reached["global_step"]
        and load_checkpoint(last)["epoch"] == reached["epoch"]
    )
    assert (tmp_path / "queued").read_text() == "requeue 7\n"  # what ended by itself is not queued again
