"""Two processes give the numbers of one, on sets that do not divide by two."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest

import mhprobe.framework.run.launch
import runs
from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_checkpoint
from runs import rows

slow = pytest.mark.slow

TWO = ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")
EXACT = {
    "head",
    "head_a",
    "head_b",
    "site",
    "curve",
    "split",
    "step",
    "heads_masked",
    "masked",
    "seed",
    "accuracy",
}


def assert_same_numbers(one: dict, two: dict, where: str) -> None:
    """Counts, names and accuracies alike; sums of floats in another order to 1e-6."""
    assert one.keys() == two.keys()
    for column, value in one.items():
        if column in EXACT or value == two[column]:
            assert value == two[column], (where, column)
        else:
            assert math.isclose(float(value), float(two[column]), rel_tol=1e-6, abs_tol=1e-6), (
                where,
                column,
            )


@slow
@pytest.mark.parametrize("task", ["probe", "mask"])
def test_two_processes_give_the_numbers_of_one(task, trained, tmp_path):
    # 101 test and 51 validation images in batches of 16: other batches on every rank, and one image
    # of padding
    command = [*runs.TINY, f"weights={trained.folder / 'model.safetensors'}"]
    command += ["trainer.precision=32-true", "data.eval_batch_size=16"]
    command += ["masking=six_curves", "+masking/join=redundant_or_inert"] if task == "mask" else []
    folders = []
    for name, more in (("one", ()), ("two", TWO)):
        (
            tmp_path / name
        ).mkdir()  # a cache of its own: the second must not read the first one's orders
        result = runs.run(task, *command, *more, cwd=tmp_path / name)
        assert result.code == 0, result.err
        folders.append(result.folder)
    tables = sorted(path.name for path in (folders[0] / "tables").iterdir())
    expected = {
        "probe": ["gate_importance.csv", "svcca.csv", "svcca_blocks.csv"],
        "mask": ["maskable_heads.csv", "masking_curves.csv", "masking_totals.csv"],
    }
    assert set(expected[task]) <= set(tables)
    for table in tables:
        pairs = zip(*(rows(folder / "tables" / table) for folder in folders), strict=True)
        for number, (one, two) in enumerate(pairs):
            assert_same_numbers(one, two, f"{table} row {number}")
    one, two = (json.loads((folder / "metrics.json").read_text()) for folder in folders)
    assert one["test/images"] == two["test/images"] == 101
    assert one["test/accuracy"] == two["test/accuracy"]
    assert_same_numbers(one, two, "metrics.json")


@slow
def test_a_mistake_that_every_rank_finds_is_said_once(tmp_path):
    result = runs.run("train", *runs.TINY, *TWO, "+trainer.wings=2", cwd=tmp_path)
    assert "wings" in result.answer
    assert not [*tmp_path.glob("outputs/*/*")]  # no note of a rank keeps the folder that it was in


def test_a_mistake_that_one_rank_finds_is_the_only_one(tmp_path, monkeypatch):
    """The second rank's broken collective says nothing; without a mistake before it, it leaves its traceback."""
    monkeypatch.setenv(mhprobe.framework.run.launch.NOTES, str(tmp_path))
    monkeypatch.setenv(mhprobe.framework.run.launch.JOB, "{}")

    def ends(error: Exception) -> int:
        def run(*_):
            raise error

        monkeypatch.setattr(mhprobe.framework.run.launch, "run", run)
        with pytest.raises(SystemExit) as leaves:
            mhprobe.framework.run.launch._rank("train", tmp_path)
        return leaves.value.code

    assert ends(RuntimeError("connection closed by peer")) == 1
    assert "closed by peer" in (tmp_path / "rank_0.txt").read_text()
    assert ends(UserError("the first line")) == ends(UserError("another line")) == 2
    assert ends(RuntimeError("connection closed by peer")) == 2
    with pytest.raises(UserError, match="the first line"):
        mhprobe.framework.run.launch._failed({0: 2, 1: 2}, tmp_path)


def test_a_rank_that_was_killed_is_named_and_the_others_say_nothing(tmp_path, capsys):
    (tmp_path / "rank_0.txt").write_text("a hundred lines of gloo")
    assert mhprobe.framework.run.launch._failed({0: 1, 1: -signal.SIGKILL}, tmp_path) == 137
    [line] = capsys.readouterr().err.splitlines()
    assert "rank 1" in line and "SIGKILL" in line
    assert (
        mhprobe.framework.run.launch._failed({0: 1}, tmp_path) == 1
    )  # without one that was killed, the first to fail speaks
    assert "a hundred lines of gloo" in capsys.readouterr().err


@slow
def test_ranks_end_with_whoever_started_them_and_leave_no_job(tmp_path):
    command = [
        *runs.TINY,
        *TWO,
        "masking=none",
        "measure=[]",
        "trainer.max_epochs=100000",
        "hydra.run.dir=killed",
    ]
    process = runs.start("train", *command, cwd=tmp_path)
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    runs.wait(lambda: last.exists() or process.poll() is not None)
    ranks = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(ranks) >= 2
    process.kill()
    process.communicate()
    runs.wait(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in ranks))
    assert not (tmp_path / "killed" / "job.yaml").exists()


@slow
def test_training_on_two_processes_survives_sigterm_and_goes_on(tmp_path):
    command = [
        *runs.TINY,
        *TWO,
        "masking=none",
        "measure=[]",
        "data.batch_size=12",
        "checkpoint.every_n_steps=1",
    ]
    process = runs.start(
        "train", *command, "trainer.max_epochs=1000", "hydra.run.dir=stopped", cwd=tmp_path
    )
    last = tmp_path / "stopped" / "checkpoints" / "last.ckpt"
    runs.wait(lambda: last.exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    stopped = runs.finish(process, tmp_path)
    assert stopped.code == 143, stopped.err
    assert "Traceback" not in stopped.err
    checkpoint = load_checkpoint(last)
    assert checkpoint["global_step"] >= 1
    epochs = f"trainer.max_epochs={checkpoint['epoch'] + 2}"
    fewer = "resume.allow=[trainer.max_epochs]"  # than it was begun with
    result = runs.run(
        "train", *command, epochs, fewer, f"ckpt_path={last}", "hydra.run.dir=resumed", cwd=tmp_path
    )
    assert result.code == 0, result.err
    metrics = json.loads((tmp_path / "resumed" / "metrics.json").read_text())
    assert metrics["test/images"] == 101 and math.isfinite(metrics["test/loss"])

    result = runs.run("train", *runs.TINY, "data.batch_size=12", f"ckpt_path={last}", cwd=tmp_path)
    assert "processes was 2, is 1 (they share out the images of a step)" in result.answer


@slow
def test_the_loss_of_a_training_step_is_that_of_all_processes(tmp_path):
    """It once was that of the first process's images alone."""
    command = [
        *runs.TINY,
        "masking=none",
        "measure=[]",
        "trainer.max_epochs=1",
        "trainer.precision=32-true",
    ]
    command += ["optim.warmup_epochs=0", "trainer.log_every_n_steps=1"]
    losses = []
    for name, more in (("one", ["data.batch_size=24"]), ("two", [*TWO, "data.batch_size=12"])):
        result = runs.run("train", *command, *more, f"hydra.run.dir={name}", cwd=tmp_path)
        assert result.code == 0, result.err
        (log,) = (tmp_path / name).rglob("metrics.csv")
        losses.append([float(row["train/loss"]) for row in rows(log) if row["train/loss"]])
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], rel=1e-4)
