"""A run that goes on is the run that it was, never another seed's, split's or job's; what may change really does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import runs
from mhprobe.weights.checkpoint import load_checkpoint
from runs import Command

pytestmark = pytest.mark.slow

SHORT = [*runs.TINY, "masking=none", "measure=[]", "trainer.max_epochs=1", "optim.warmup_epochs=0"]
SWEEP = ["-m", *SHORT, "seed=0,1", "name=sw"]
MORE = "trainer.max_epochs=2"


def sweeps(cwd: Path) -> list[Path]:
    return sorted((cwd / "outputs" / "sw").glob("sweep_*"))


def last(folder: Path) -> dict:
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")


def test_every_job_of_a_sweep_goes_on_from_its_own(tmp_path):
    """The newest file around is another job's: of the sweep before, and of this one."""
    first, second = runs.answers(
        [Command("train", SWEEP), Command("train", [*SWEEP, MORE, "ckpt_path=last"])], tmp_path
    )
    assert first.code == second.code == 0, first.err + second.err
    old, new = sweeps(tmp_path)
    for job in range(2):
        assert re.search(rf"resuming from \S*/{old.relative_to(tmp_path)}/{job}/", second.out)
        before, after = last(old / str(job)), last(new / str(job))
        assert before["run"]["seed"] == after["run"]["seed"] == job
        assert after["global_step"] == 2 * before["global_step"]
    assert (
        "trainer.max_epochs was 1, is 2" in second.out
    )  # and the schedule is not that of two epochs from the start


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory) -> Path:
    cwd = tmp_path_factory.mktemp("once")
    (result,) = runs.answers([Command("train", [*SHORT, "hydra.run.dir=run"])], cwd)
    assert result.code == 0, result.err
    return cwd


def test_another_run_is_refused_with_every_difference(trained_once):
    path = f"ckpt_path={trained_once}/run/checkpoints/last.ckpt"
    others = {
        "seed=3": ("seed was 0, is 3", "data.images was"),
        "data.val_fraction=0.2": ("data.val_fraction was 0.1, is 0.2",),
        "data.limit_train=80": ("data.limit_train was 96, is 80",),
        "optim.lr=0.5": ("optim.lr was 0.0015, is 0.5", "resume.allow=[optim.lr]"),
        "optim.weight_decay=0": ("optim.weight_decay was 0.05, is 0",),
        "trainer.precision=bf16-mixed": ("precision was",),
    }
    commands = [
        Command("train", [*SHORT, MORE, path, f"hydra.run.dir=other{i}", change])
        for i, change in enumerate(others)
    ]
    for result, words in zip(runs.answers(commands, trained_once), others.values(), strict=True):
        for word in words:
            assert word in result.answer


def test_what_may_change_really_does(trained_once):
    path = f"ckpt_path={trained_once}/run/checkpoints/last.ckpt"
    changed = [
        "optim.lr=0.5",
        "optim.weight_decay=0.01",
        "resume.allow=[optim.lr,optim.weight_decay]",
    ]
    (result,) = runs.answers(
        [Command("train", [*SHORT, MORE, path, "hydra.run.dir=on", *changed])], trained_once
    )
    assert result.code == 0, result.err
    assert "optim.lr was 0.0015, is 0.5" in result.out
    groups = last(trained_once / "on")["optimizer_states"][0]["param_groups"]
    assert {group["initial_lr"] for group in groups} == {0.5}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.01}


def test_a_stopped_run_is_not_begun_anew_over_its_checkpoint(trained_once):
    """It once was: the first epoch of the new run replaced the checkpoint of the old one's last."""
    checkpoint = trained_once / "stopped" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    shutil.copy(trained_once / "run" / "checkpoints" / "last.ckpt", checkpoint)
    before = checkpoint.read_bytes()
    small = runs.known("probe", [*runs.TINY, "measure=[]"])
    other = Command(
        "probe", [*small, "measure=[entropy]", "weights=random", "hydra.run.dir=stopped"]
    )
    result, probed = runs.answers(
        [Command("train", [*SHORT, "hydra.run.dir=stopped"]), other], trained_once
    )
    assert result.code == 2
    assert (
        "holds a training that was stopped" in result.answer and "ckpt_path=last" in result.answer
    )
    assert probed.code == 2 and "is that of a stopped training" in probed.answer
    assert checkpoint.read_bytes() == before


def test_a_finished_training_is_not_begun_anew_in_its_folder(trained_once):
    """It once was: the page showed the new weights' accuracy beside the old ones' measures and curves."""
    weights = trained_once / "run" / "model.safetensors"
    before = weights.read_bytes()
    (result,) = runs.answers(
        [Command("train", [*SHORT, "seed=5", "hydra.run.dir=run"])], trained_once
    )
    assert result.code == 2
    assert re.search(
        r"run is that of digits_vit \(digest \w{8}\) on digits \(digest \w{8}\), .* a new training",
        result.answer,
    )
    assert "another folder" in result.answer
    assert weights.read_bytes() == before


OTHERS = {  # commands that write into a folder, with what they ask for
    "probe": ["measure=[entropy]"],
    "mask": [],
    "prune": ["prune=given", "prune.heads=[1]"],
    "maps": ["maps=[rollout]", "faithfulness=null"],
    "study": ["+paper=byun_kim", "figures=[1]"],
    "claims": ["claims=[entropy_falls_with_depth]"],
    "prunebench": ["methods=[random]"],
    "studies.causal": [],
}


def test_results_of_other_weights_or_images_stay_out_of_a_folder(trained_once):
    """They once stood on one page: probing other weights into a folder kept the tables of the former."""
    saved, here = (
        f"weights={trained_once}/run/model.safetensors",
        f"hydra.run.dir={trained_once}/run",
    )
    small = runs.known("probe", [*runs.TINY, "measure=[]", "trainer.precision=32-true"])
    again = [*small, "measure=[entropy]", saved, here]
    (allowed,) = runs.answers([Command("probe", again)], trained_once)
    assert allowed.code == 0, allowed.err

    def there() -> dict[Path, bytes]:
        folders = (trained_once / "run" / part for part in ("tables", "config"))
        return {path: path.read_bytes() for folder in folders for path in folder.iterdir()}

    before = there()
    others = [
        Command(name, [*runs.known(name, runs.TINY), "weights=random", here, *how])
        for name, how in OTHERS.items()
    ]
    fewer = Command("probe", [*again, "data.limit_test=100"])
    *results, last_result = runs.answers([*others, fewer], trained_once)
    for result in results:
        assert result.code == 2
        assert re.search(
            r"run_model \(digest \w{8}\) on digits .* of untrained \w+ \(digest \w{8}\) on digits",
            result.answer,
        )
    assert last_result.code == 2 and "another folder" in last_result.answer
    assert before == there()
    (allowed,) = runs.answers([Command("train", [*SHORT, here, "ckpt_path=last"])], trained_once)
    assert allowed.code == 0, allowed.err


def test_a_run_in_its_own_folder_goes_on_there(trained_once):
    again = [*SHORT, MORE, "hydra.run.dir=run", "ckpt_path=last"]
    (result,) = runs.answers([Command("train", again)], trained_once)
    assert result.code == 0, result.err
    assert f"resuming from {trained_once}/run/checkpoints/last.ckpt" in result.out
