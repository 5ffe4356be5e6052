"""All that computes does so on a device that is not the CPU, and a tensor that was left behind is found.

The device is that of tests/helpers/pretend.py. Commands and the members of groups are those that are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import lightning as L
import pytest
import test_ranks
import torch
from hydra.utils import instantiate
from torch import nn

import mhprobe
import pretend
import runs
import spawned
from mhprobe import ranks
from mhprobe.framework.questions import material
from mhprobe.framework.run import launch, networks, sections
from mhprobe.framework.training.ends import StopAtNonFinite
from mhprobe.gates.base import Follower
from mhprobe.heads import FillName
from mhprobe.measures.base import Measure
from mhprobe.measures.entropy import Entropy
from mhprobe.weights import twin
from models import images_for, labels_for, tiny_swin, tiny_vit
from pieces import FEW, PIECES, names, run_piece


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Where decoded images lie."""
    return tmp_path_factory.mktemp("kept")


def test_every_command_that_computes_is_tried():
    assert {command for command, _ in PIECES.values()} == set(sections.commands_of_conf()) - {
        "fetch"
    }  # it downloads


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_it_runs(piece, tmp_path, kept):
    pretend.alone(run_piece, tmp_path, piece, pretend.NAME, str(kept), str(tmp_path / "run"))


# without a command


def loader(model: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    device = next(model.parameters()).device
    return [
        (images_for(model, 6, seed).to(device), labels_for(6, seed).to(device)) for seed in (1, 2)
    ]


@pytest.mark.slow
def test_searches_fills_and_scores_run(tmp_path):
    pretend.alone(search_fill_and_score, tmp_path)


def search_fill_and_score() -> None:
    warnings.simplefilter("ignore")  # so few images say little about heads
    model = tiny_vit().to(pretend.start())
    options: list[dict[str, Any]] = [{"fill": fill} for fill in get_args(FillName)]
    apart = (
        "auto",
        "knn_train",
    )  # the second asks for training images: `mhprobe.mask` gives it these
    options += [{"score": score} for score in names("score") if score not in apart]
    searches = [runs.checked("mask", f"search={name}").search for name in names("search")]
    options += [{"search": instantiate(search)} for search in searches if search]
    for some in options:
        curves = mhprobe.masking_curve(model, loader(model), "head", steps=1, **some)
        assert curves, some


@pytest.mark.slow
def test_two_ranks_send_each_other_nothing_that_is_on_the_cpu_and_say_the_same(tmp_path):
    """All measures, sums of slopes, Fisher information and causal gates, on windows; numbers are held by test_ranks."""
    spawned.ranks(one_rank, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert set(names("measure")) == set(first["measures"]) | set(first["refused"])
    assert test_ranks.differences(first, second) == []


def one_rank(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    device = pretend.start()
    pretend.collectives()
    model = tiny_swin().double().to(device)
    torch.save(test_ranks.plain(test_ranks.numbers(model, 5, [])), folder / f"{rank}.pt")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        ranks.total(torch.zeros(3))  # negative control: a sum that was left on the CPU


# what is left behind is found


class Forgetful(Entropy):
    """Makes a tensor and does not say where."""

    def update(self, batch):
        super().update(batch)
        self.extra = batch.logits[:, :3].double().sum(0) + torch.zeros(3, dtype=torch.float64)


class Elsewhere(Entropy):
    """Draws on the device with a generator of the CPU."""

    def update(self, batch):
        super().update(batch)
        torch.rand(3, device=batch.logits.device, generator=torch.Generator())


PLANTED = [(Entropy, None), (Forgetful, "same device"), (Elsewhere, "type for generator")]


@pytest.mark.parametrize(("measure", "words"), PLANTED)
def test_a_measure_that_forgets_the_device_is_found(measure, words, tmp_path):
    pretend.alone(forget, tmp_path, measure, words)


def forget(measure: type[Measure], words: str | None) -> None:
    model = tiny_vit()
    expected = mhprobe.measure(model, loader(model), [Entropy])["entropy"]
    model.to(pretend.start())
    if words is None:
        found = mhprobe.measure(model, loader(model), [measure])["entropy"]
        # the same numbers up to the last bits of float32: the device met queries and keys itself
        torch.testing.assert_close(
            torch.as_tensor(found).cpu(), torch.as_tensor(expected), rtol=1e-6, atol=0
        )
        return
    with pytest.raises(RuntimeError, match=words):
        mhprobe.measure(model, loader(model), [measure])


@pytest.mark.parametrize("left", ["nothing", "gates", "mode"])
def test_a_twin_that_is_left_behind_is_found(left, tmp_path):
    """Each with a cache of its own: from a common one the second run would take the columns that the first measured."""
    pretend.alone(leave, tmp_path, left, str(tmp_path / "cache"), str(tmp_path / "run"))


def leave(left: str, kept: str, folder: str) -> None:
    options = (
        *FEW,
        "trainer.accelerator=pretend",
        "measure=[gate_importance]",
        "probe.control=random_init",
    )
    cfg = runs.config("probe", Path(kept), *options)
    if left == "gates":  # as they were before they followed their model
        Follower._apply = lambda self, fn, *args: self  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="same device"):
            launch.module("probe").run(cfg, Path(folder))
        return
    if left == "mode":  # moved in the inference mode of a test, as .to alone does it
        twin.moved = lambda model, device: model.to(device)  # type: ignore[assignment]
    warned: set[str] = set()
    material.log.warning = lambda line, *told: warned.add(line % told)  # type: ignore[method-assign,assignment]
    launch.module("probe").run(cfg, Path(folder))
    with_control = (Path(folder) / "tables" / "gate_importance_random_init.csv").exists()
    if left == "nothing":
        assert with_control and not warned
    else:
        (line,) = warned
        assert (
            line.startswith("gate_importance: no control.")
            and "made inside torch.inference_mode()" in line
        )
        assert not with_control


# what is asked of the device


def test_looking_for_what_is_not_finite_waits_once_a_step(tmp_path):
    pretend.alone(wait, tmp_path)


def wait() -> None:
    plain, looked = (waits_of([]), waits_of([StopAtNonFinite()]))
    assert looked - plain == STEPS


STEPS = 6


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def waits_of(callbacks: list[L.Callback]) -> int:
    """How often a training waits for the device."""
    before = len(pretend.waits)
    off = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(max_epochs=1, accelerator="pretend", callbacks=callbacks, **off)
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(STEPS, 2, 4), batch_size=None))
    return len(pretend.waits) - before


def test_the_whole_network_labels_images_where_the_run_is(tmp_path):
    """Each rank on its own device; it was the first GPU for all of them."""
    pretend.alone(label, tmp_path)


def label() -> None:
    cfg = runs.config("probe", Path(), *FEW, "trainer.accelerator=pretend")
    places: list[torch.device] = []
    source = SimpleNamespace(name="photos")
    data = SimpleNamespace(
        source=source,
        label_by=lambda model, names, device: places.extend(
            [device, next(model.parameters()).device]
        ),
    )
    networks._label(cfg, data, tiny_vit(), ["one", "other"])  # type: ignore[arg-type]
    assert places == [torch.device("pretend", 0)] * 2


@pytest.mark.parametrize(
    "work", ["add", "cat", "index", "index_put", "where", "in place", "to numpy"]
)
def test_the_pretence_refuses_what_a_gpu_refuses(work, tmp_path):
    pretend.alone(refuse, tmp_path, work)


def refuse(work: str) -> None:
    there, here = torch.ones(3, device=pretend.start()), torch.zeros(3)
    mistakes: dict[str, Callable[[], Any]] = {
        "add": lambda: there + here,
        "cat": lambda: torch.cat([there, here]),
        "index": lambda: here[there > 0],
        "index_put": lambda: there.index_put_((torch.tensor([0, 1, 2]),), here),
        "where": lambda: torch.where(there > 0, here, there),
        "in place": lambda: here.add_(there),
        "to numpy": lambda: there.numpy(),
    }
    with pytest.raises((RuntimeError, TypeError)):
        mistakes[work]()
    assert (there + torch.tensor(1.0)).tolist() == [2.0] * 3  # a number on the CPU is a number
    assert (
        there[torch.tensor([0, 2])].tolist() == [1.0] * 2
        and here.copy_(there).tolist() == [1.0] * 3
    )
    assert (there + 1).device == there.device and torch.equal(there.cpu(), torch.ones(3))
