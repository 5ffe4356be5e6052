"""A run that was stopped goes on as if it had not been: the same bits, wherever it was stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

import runs
from mhprobe.weights.checkpoint import load_checkpoint
from runs import Command

pytestmark = pytest.mark.slow

# everything that draws random numbers, four steps in each of two epochs, and a checkpoint after
# each step
RANDOM = [
    *runs.TINY,
    *("masking=none", "measure=[]", "data.batch_size=24", "checkpoint.every_n_steps=1"),
    *("backbone.drop_path_rate=0.3", "+backbone.proj_drop_rate=0.1"),
    *("data.augment.crop_padding=1", "data.augment.flip=true", "data.augment.mixup=0.2"),
    *("data.augment.rand_augment=1", "optim.ema=0.9"),
]
SAVES = [
    "step 1",
    "step 2",
    "step 3",
    "best 1",
    "epoch 1",
    "step 5",
    "step 6",
    "step 7",
]  # in the order they come


def inside(folder: str, *more: str) -> list[str]:
    return [*RANDOM, f"hydra.run.dir={folder}", *more]


def last(cwd: Path, folder: str) -> dict:
    return load_checkpoint(cwd / folder / "checkpoints" / "last.ckpt")


def state(cwd: Path, folder: str) -> dict[str, torch.Tensor]:
    return {k: v for k, v in last(cwd, folder)["state_dict"].items() if isinstance(v, torch.Tensor)}


def results(cwd: Path, folder: str) -> dict:
    return json.loads((cwd / folder / "metrics.json").read_text())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run, and one of another seed: the draws do matter."""
    cwd = tmp_path_factory.mktemp("resume")
    for result in runs.answers(
        [Command("train", inside("whole")), Command("train", inside("seed", "seed=1"))], cwd
    ):
        assert result.code == 0, result.err
    return cwd


SIGTERMS = {  # after which save the signal comes -> the step that last.ckpt holds
    "mid-epoch": (2, 3),
    "before an epoch's last step": (3, 4),
    "between the validation and the end of the epoch": (4, 4),
}


@pytest.fixture(scope="module")
def stopped(whole):
    """By (signal, save): how the run ended that was stopped there.

    Its folder and that of its resumption by name.
    """
    stops = [(signal.SIGKILL, save) for save in range(1, len(SAVES) + 1)]
    stops += [(signal.SIGTERM, save) for save, _ in SIGTERMS.values()]
    commands = []
    for number, save in stops:
        where = f"ckpt_path={whole / name('stopped', number, save)}/checkpoints/last.ckpt"
        commands.append(Command("train", inside(name("stopped", number, save)), number, save))
        commands.append(Command("train", inside(name("resumed", number, save), where)))
    ends = runs.answers(commands, whole)
    for second in ends[1::2]:
        assert second.code == 0, second.err
    return dict(zip(stops, ends[::2], strict=True))


def name(what: str, number: int, save: int) -> str:
    return f"{what}_{int(number)}_{save}"


def test_another_seed_gives_other_weights(whole):
    assert not same(state(whole, "whole"), state(whole, "seed"))


@pytest.mark.parametrize("save", range(1, len(SAVES) + 1), ids=SAVES)
def test_killed_after_any_checkpoint_it_ends_with_the_same_bits(whole, stopped, save):
    assert stopped[signal.SIGKILL, save].code == -signal.SIGKILL
    assert (
        last(whole, name("stopped", signal.SIGKILL, save))["global_step"] < 8
    )  # it was stopped on the way
    resumed = name("resumed", signal.SIGKILL, save)
    assert same(state(whole, resumed), state(whole, "whole"))
    assert results(whole, resumed) == results(
        whole, "whole"
    )  # of the best epoch, also if that lay before the stop


@pytest.mark.parametrize(("save", "step"), SIGTERMS.values(), ids=SIGTERMS.keys())
def test_sigterm_finishes_the_step_saves_and_exits_143(whole, stopped, save, step):
    end = stopped[signal.SIGTERM, save]
    assert end.code == 143, end.err
    assert "Traceback" not in end.err
    assert last(whole, name("stopped", signal.SIGTERM, save))["global_step"] == step
    resumed = name("resumed", signal.SIGTERM, save)
    assert same(state(whole, resumed), state(whole, "whole"))
    assert results(whole, resumed) == results(whole, "whole")


def test_last_is_the_newest_run_and_a_finished_one_is_tested_again(tmp_path):
    """Killed between its last step and its tables it has them, too: those of what happened in the training as well."""
    plain = [part for part in RANDOM if part not in ("checkpoint.every_n_steps=1", "measure=[]")]
    tiny = [
        *plain,
        "gates=hard_concrete",
        "measure=[gate_importance]",
        "probe.every_n_epochs=1",
        "optim.ema=null",
    ]
    first, second = runs.answers(
        [Command("train", tiny), Command("train", [*tiny, "ckpt_path=last"])], tmp_path
    )
    assert first.code == second.code == 0, first.err + second.err
    assert "resuming from" in second.out
    folders = sorted((tmp_path / "outputs" / "digits_vit").iterdir())
    assert len(folders) == 2
    first, second = (results(folder, "") for folder in folders)
    assert first == second and "val/accuracy" in first
    first, second = (
        {path.name: path.read_bytes() for path in folder.glob("tables/*")} for folder in folders
    )
    assert first == second and {"gate_history.csv", "gate_importance_history.csv"} <= first.keys()
    first, second = ({path.name for path in folder.glob("figures/*")} for folder in folders)
    assert first == second


def test_other_batches_and_other_backbones_are_refused(whole):
    where = f"ckpt_path={whole}/whole/checkpoints/last.ckpt"
    batches, backbone = runs.answers(
        [
            Command("train", inside("batches", where, "data.batch_size=32")),
            Command("train", inside("backbone", where, "backbone.num_heads=2")),
        ],
        whole,
    )
    assert "24" in batches.answer and "32" in batches.answer
    assert "num_heads" in backbone.answer


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    explode = inside(
        "explode", "optim.lr=1e30", "optim.warmup_epochs=0", "trainer.gradient_clip_val=null"
    )
    [result] = runs.answers([Command("train", explode)], tmp_path)
    assert "step" in result.answer and "nan" in result.answer.lower()
    kept = state(tmp_path, "explode")
    assert all(value.isfinite().all() for value in kept.values())
