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
from mhprobe.framework.run import sections
from mhprobe.framework.run.quiet import quiet
from mhprobe.weights.checkpoint import load_checkpoint

LAUNCH = Path(__file__).parents[3] / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir() if path.read_text().startswith("#!"))

# stand-ins: one task on this machine, told and killed as srun does it, and a note instead of a
# queue
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


def start(cwd: Path, command: str, *overrides: str, **more: str) -> subprocess.Popen[str]:
    """launch/slurm_<command>.sh as SLURM runs it, one task on one machine."""
    cluster = {
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_JOB_NAME": "mhprobe",
    }
    python = Path(sys.executable).parent
    environment = {**runs.environment(), **cluster, **more, "SLURM_SUBMIT_DIR": str(LAUNCH.parent)}
    environment["PATH"] = f"{cwd / 'bin'}:{python}:{environment['PATH']}"
    return subprocess.Popen(
        ["bash", str(LAUNCH / f"slurm_{command}.sh"), *overrides],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_run_on_a_machine_that_has_slurm_is_not_told_to_use_it(cluster, monkeypatch):
    monkeypatch.setenv("PATH", str(cluster / "bin"))
    plain = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
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


TRAINING = [
    *runs.TINY,
    "masking=none",
    "measure=[]",
    "checkpoint.every_n_steps=1",
    "trainer.max_epochs=100000",
]


def test_every_task_gets_the_cores_that_the_job_asked_for(cluster):
    """srun stopped reading SLURM_CPUS_PER_TASK in 22.05; what it reads is SRUN_CPUS_PER_TASK."""
    (cluster / "bin" / "srun").write_text(
        '#!/usr/bin/env bash\necho "cores: $SRUN_CPUS_PER_TASK"\n'
    )
    for cores, said in (("8", "cores: 8"), (None, "cores: ")):
        asked = {} if cores is None else {"SLURM_CPUS_PER_TASK": cores}
        assert start(cluster, "mask", **asked).communicate(timeout=60)[0].strip("\n") == said


@pytest.mark.parametrize(
    "script", [path for path in SCRIPTS if "#SBATCH" in path.read_text()], ids=lambda p: p.name
)
def test_jobs_keep_what_they_print_over_all_their_starts(script):
    lines = script.read_text().splitlines()
    assert "#SBATCH --output=%x-%j.log" in lines and "#SBATCH --open-mode=append" in lines
    (command,) = (line.split()[1] for line in lines if line.startswith("job "))
    assert script.name == f"slurm_{command}.sh" and command in sections.commands_of_conf()


def test_the_page_of_launchers_names_every_script():
    page = (LAUNCH.parent / "docs" / "scaling.md").read_text()
    for script in SCRIPTS:
        assert script.name in page or "#SBATCH" not in script.read_text()


@pytest.fixture
def mask_steps(tmp_path):
    """launch/mask_steps.sh with a stand-in for Python, told what a refused step is answered: what was run."""
    bin = tmp_path / "bin"
    bin.mkdir()

    def told(*overrides: str, answer: str, **settings: str) -> tuple[int, str, list[str]]:
        text = (
            'echo "$@" >> commands\n[[ $* == *"mask -m"* ]] && exit 0\necho "$ANSWER" >&2; exit 2'
        )
        (bin / "python").write_text(f"#!/usr/bin/env bash\n{text}\n")
        (bin / "python").chmod(0o755)
        (tmp_path / "commands").write_text("")
        environment = {key: value for key, value in os.environ.items() if key != "STEPS"}
        environment |= {"PATH": f"{bin}:{environment['PATH']}", "ANSWER": answer, **settings}
        done = subprocess.run(
            ["bash", str(LAUNCH / "mask_steps.sh"), *overrides],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
        )
        return done.returncode, done.stderr, (tmp_path / "commands").read_text().splitlines()

    return told


@pytest.mark.parametrize("last", [3, 12])
def test_a_sweep_over_steps_ends_where_the_longest_curve_does(mask_steps, last):
    answer = f"masking.step: steps 0 to {last} exist, got 999999999. Give one of these."
    launcher = ("hydra/launcher=slurm", "+hydra.launcher.partition=gpu")
    code, _, commands = mask_steps("weights=hydra/a", *launcher, answer=answer)
    assert code == 0
    steps = ",".join(map(str, range(last + 1)))
    assert commands == [
        "-m mhprobe.mask weights=hydra/a masking.step=999999999",
        f"-m mhprobe.mask -m masking.step={steps} weights=hydra/a {' '.join(launcher)}",
    ]


def test_a_sweep_over_given_steps_asks_nobody(mask_steps):
    code, _, commands = mask_steps("weights=a", answer="", STEPS="0,3")
    assert code == 0 and commands == ["-m mhprobe.mask -m masking.step=0,3 weights=a"]


def test_a_sweep_over_steps_passes_another_refusal_on(mask_steps):
    code, said, commands = mask_steps("weights=a", answer="mhprobe: weights: no file a.")
    assert (code, said, len(commands)) == (2, "mhprobe: weights: no file a.\n", 1)


@pytest.fixture
def torchrun(tmp_path):
    """launch/torchrun.sh with stand-ins, on a machine of three GPUs: what torchrun is told, or what is refused."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, text in (("torchrun", 'echo "$@"'), ("nvidia-smi", "printf 'one\\ntwo\\nthree\\n'")):
        (bin / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (bin / name).chmod(0o755)

    def told(**settings: str) -> tuple[int, str]:
        environment = {
            key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"
        }
        environment |= {"PATH": f"{bin}:{environment['PATH']}", **settings}
        done = subprocess.run(
            ["bash", str(LAUNCH / "torchrun.sh"), "seed=1"],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
        )
        return done.returncode, done.stdout + done.stderr

    return told


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("0,2", 2), ("1", 1), ("GPU-8932f937,MIG-2", 2), ("0,-1,2", 1)],
)
def test_torchrun_starts_a_process_for_each_gpu_that_cuda_shows(torchrun, visible, count):
    code, said = torchrun(**({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    assert code == 0 and f"--standalone --nproc-per-node={count} " in said
    assert f"trainer.devices={count} trainer.num_nodes=1 " in said and said.strip().endswith(
        " seed=1"
    )


def test_torchrun_without_a_gpu_says_so(torchrun):
    code, said = torchrun(CUDA_VISIBLE_DEVICES="")
    assert code == 2 and "no GPU to run on; set NPROC" in said
    assert "--nproc-per-node=2 " in torchrun(CUDA_VISIBLE_DEVICES="", NPROC="2")[1]


def test_torchrun_on_two_machines_meets_at_one_of_them(torchrun):
    code, said = torchrun(NODES="2", FIRST="host1:29500", RUN_DIR="/shared/run")
    assert (
        code == 0
        and "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=host1:29500 --rdzv-id=mhprobe " in said
    )
    assert "trainer.num_nodes=2 hydra.run.dir=/shared/run seed=1" in said
    code, said = torchrun(NODES="2", FIRST="host1:29500")
    assert code != 0 and "a folder that all machines share" in said


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
    assert (
        cluster / "queued"
    ).read_text() == "requeue 7\n"  # who cancels a job does not want it again


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
