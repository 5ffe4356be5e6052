"""Every number is the same on one, two and three processes: counts exactly, sums of floats to 1e-9.

The networks are float64 here. In float32 a forward pass itself rounds differently in batches of
another size, by up to 1e-6 of a number and on one process too; how many processes share the images
decides how large their batches are.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

import forks
import mhprobe
import runs
import spawned
from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.data.loader import EvalOrder
from mhprobe.errors import UserError
from mhprobe.framework.run import launch
from mhprobe.framework.run.construct import construct
from mhprobe.framework.run.members import members
from mhprobe.framework.run.sections import options_of_group
from mhprobe.io.tensors import OUTCOMES
from mhprobe.lab.papers.causal_gates import Fit, causal_gates
from mhprobe.masking.parts.curve import CurveSpec, curve_on_splits
from mhprobe.recording.measuring import measure_columns
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.scoring.parts.tally import tally
from models import images_for, labels_for, tiny_swin, tiny_vit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning"),
]

MODELS = {"vit": tiny_vit, "swin": tiny_swin}
# by the number of processes: an odd number of images on either network, and fewer than three
# processes, so that the last has none, which is no matter of the network
CASES = {
    1: [("vit", 13), ("swin", 13), ("vit", 2)],
    2: [("vit", 13), ("swin", 13)],
    3: [("vit", 13), ("vit", 2)],
}
BATCH = 4
# float64 sums in another order; correlations of as many rows as channels amplify that, where they
# are 0
SAME = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
FITTED = {
    "rtol": 1e-6,
    "atol": 1e-9,
    "equal_nan": True,
}  # Adam divides by the size of a slope, however small


@dataclasses.dataclass
class Split:
    """Images and what is known of them; a walk is over this rank's share."""

    images: Tensor
    labels: Tensor
    objects: Tensor

    @classmethod
    def of(cls, model: nn.Module, size: int, seed: int) -> Split:
        """On the model's device."""
        images, device = (
            images_for(model, size, seed, torch.float64),
            next(model.parameters()).device,
        )
        objects = torch.randint(
            0, 3, images[:, 0].shape, generator=torch.Generator().manual_seed(seed)
        )
        return cls(*(part.to(device) for part in (images, labels_for(size, seed), objects)))

    def batches(self, chosen: Tensor | None = None) -> Iterator[Batch]:
        count = len(self.labels) if chosen is None else chosen.numpy()
        for picks in EvalOrder(count, BATCH, ranks.rank(), ranks.size()):
            at, valid = (
                torch.from_numpy(part).to(self.labels.device) for part in (picks.index, picks.valid)
            )
            yield Batch(self.images[at], self.labels[at], at, valid, objects=self.objects[at])

    def training(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for piece in torch.arange(len(self.labels)).split(BATCH):
            for batch in self.batches(piece):
                yield batch.images[batch.valid], batch.labels[batch.valid]


def specs() -> Iterator[CurveSpec]:
    """Every curve of every masking=, and a greedy one with every search=; of those that are alike the first."""
    seen: set[str] = set()
    for spec in named_specs():
        said = repr(dataclasses.replace(spec, name=""))
        if said not in seen:
            seen.add(said)
            yield spec


def named_specs() -> Iterator[CurveSpec]:
    for masking in options_of_group("masking"):
        if not runs.composed(
            "mask", f"masking={masking}"
        ).masking.curves:  # none has nothing to mask
            continue
        for name, part in runs.checked("mask", f"masking={masking}").masking.curves.items():
            yield CurveSpec(
                name=f"{masking}/{name}",
                **{**part.model_dump(), "order": construct(part.order, name)},
            )
    for search in options_of_group("search"):
        part = runs.checked("mask", "masking=orders", f"search={search}").masking.curves["greedy"]
        yield CurveSpec(
            name=f"greedy/{search}", **{**part.model_dump(), "order": construct(part.order, search)}
        )


def numbers(model: nn.Module, size: int, curves: list[CurveSpec]) -> dict[str, Any]:
    """All that mhprobe says of a network on ``size`` images."""
    layout = mhprobe.attach(model).layout
    test, val = Split.of(model, size, 1), Split.of(model, 9, 2)
    measures = {
        name: instantiate(part, _convert_="all")(layout)
        for name, part in members("measure").items()
    }
    columns, refused = measure_columns(model, measures, test.batches, val.batches)
    found: dict[str, Any] = {
        "measures": columns,
        "refused": {name: str(error) for name, error in refused.items()},
        "tally": tally(model, test.batches(), size),
        "curves": {},
    }
    evaluate = [
        Evaluator(model, each.batches, len(each.labels), pick=each.batches) for each in (val, test)
    ]
    half = torch.arange(layout.num_heads) % 2 == 0
    found["slopes"], found["fisher"] = (
        torch.stack(evaluate[1].slopes(half)),
        evaluate[1].fisher(half),
    )
    for spec in curves:
        made = curve_on_splits(layout, spec, *evaluate)
        found["curves"][spec.name] = [plain(curve) for curve in made]
    found["spent"] = [(each.spent, each.computed) for each in evaluate]
    found["fitted"] = causal_gates(model, test.training, Fit(steps=12, start_steps=4))
    return found


def plain(value: Any) -> Any:
    """Dataclasses and tuples as dictionaries and lists, which torch.load takes without their classes."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def everything(curves: list[CurveSpec], world: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # so few images say little about heads
    made = {(name, size): MODELS[name]().double() for name, size in CASES[world]}
    return {
        f"{name}/{size}": plain(numbers(model, size, curves))
        for (name, size), model in made.items()
    }


def refuse_to_gather(*_: Any, **__: Any) -> None:
    raise AssertionError(
        "a sum was gathered: that takes as many times its memory as there are processes"
    )


def one_rank(rank: int, world: int, folder: Path, weights: str, curves: list[CurveSpec]) -> None:
    ranks.PIECE = 1000  # so that small sums too are added up in several pieces
    gather, torch.distributed.all_gather = torch.distributed.all_gather, refuse_to_gather
    torch.save(everything(curves, world), folder / f"{rank}.pt")
    torch.distributed.all_gather = gather
    if world == 2:
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "GROUP_RANK": 0,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
        }
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "test",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "0",
        }
        commands(folder, weights, "trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")


TASKS: dict[str, tuple[str, ...]] = {
    "studies.causal": ("causal.steps=3", "causal.start_steps=2", "causal.batch_size=16"),
    "studies.voita": ("+experiment=digits_voita", "voita.heads=[3]", "voita.scratch_epochs=1"),
    "maps": ("images=[0,5]",),
    "prune": ("prune=given", "prune.heads=[1]"),
}


def commands(folder: Path, weights: str, *more: str) -> None:
    """The commands that are no measure or curve, each in a folder of its own; what they refuse is kept there."""
    for task, overrides in TASKS.items():
        tiny = [
            part for part in runs.TINY if not (part.startswith("+experiment") and "voita" in task)
        ]
        where = folder / task
        told = [
            *tiny,
            "trainer.precision=32-true",
            "trainer.max_epochs=2",
            f"cache_dir={folder}/cache",
        ]
        cfg = runs.composed(task, *told, f"weights={weights}", *overrides, *more)
        try:
            launch.run(task, cfg, where)
        except UserError as error:
            where.mkdir(exist_ok=True)
            (where / "refused.txt").write_text(str(error))


@pytest.fixture(scope="module")
def curves() -> list[CurveSpec]:
    return list(specs())


@pytest.fixture(scope="module")
def alone(curves) -> dict[str, Any]:
    return everything(curves, 1)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, trained, curves) -> Callable[[int], Path]:
    """The folder of what so many processes found; each number of them is started once."""

    @functools.cache
    def start(world: int) -> Path:
        folder = tmp_path_factory.mktemp(f"world_{world}")
        weights = str(trained.folder / "model.safetensors")
        spawned.ranks(one_rank, world, folder, weights, curves)
        return folder

    return start


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two answers differ: floats beyond the tolerance, all else at all."""
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{where}: {list(one)} and {list(other)}"]
        return [line for key in one for line in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = zip(one, other, strict=True)
        return [
            line
            for number, (a, b) in enumerate(pairs)
            for line in differences(a, b, f"{where}/{number}")
        ]
    if isinstance(one, Tensor) and one.is_floating_point():
        bound = FITTED if "/fitted/" in where else SAME
        close = torch.allclose(one, other, **bound)
        return [] if close else [f"{where}: by up to {(one - other).abs().nan_to_num(0).max():.1e}"]
    same = (
        torch.equal(one, other)
        if isinstance(one, Tensor)
        else one == other or (one != one and other != other)
    )
    return [] if same else [f"{where}: {one} and {other}"]


@pytest.mark.parametrize("world", [world for world in CASES if world > 1])
def test_measures_curves_searches_and_fits_are_those_of_one_process(alone, folder_of, world):
    expected = {
        name: alone[name] for name in (f"{network}/{size}" for network, size in CASES[world])
    }
    for rank in range(world):
        found = torch.load(folder_of(world) / f"{rank}.pt", weights_only=True)
        assert differences(expected, found) == []


def test_the_comparison_sees_a_difference(alone):
    """Negative control: the networks say something, and one image more or less is seen."""
    vit = alone["vit/13"]
    assert len(vit["measures"]) > 15 and len(vit["curves"]) > 15
    assert differences({"tally": vit["tally"]}, {"tally": alone["vit/2"]["tally"]})
    assert differences({"x": torch.tensor(1.0)}, {"x": torch.tensor(1.0 + 1e-6)})


def test_studies_and_maps_run_on_two_processes_and_pruning_says_that_it_does_not(
    folder_of, trained, tmp_path
):
    folder = folder_of(2)
    assert "prune: runs in one process" in (folder / "prune" / "refused.txt").read_text()
    assert [path.name for path in folder.glob("*/refused.txt")] == ["refused.txt"]
    commands(tmp_path, str(trained.folder / "model.safetensors"))
    for table in ("studies.causal/tables/causal.csv", "maps/tables/maps.csv"):
        one, two = (runs.rows(where / table) for where in (tmp_path, folder))
        for mine, theirs in zip(one, two, strict=True):
            assert same_row(mine, theirs), (table, mine, theirs)
    one, two = (
        json.loads((where / "studies.causal" / "metrics.json").read_text())
        for where in (tmp_path, folder)
    )
    written = [(where / "studies.causal" / OUTCOMES).read_bytes() for where in (tmp_path, folder)]
    assert written[0] == written[1]
    assert (
        one["test/accuracy"] == two["test/accuracy"]
        and one["test/images"] == two["test/images"] == 101
    )
    rows = runs.rows(
        folder / "studies.voita" / "tables" / "voita.csv"
    )  # trained with batches twice as large
    assert [row["heads"] for row in rows] == ["6", "3"] and {row["images"] for row in rows} == {
        "101"
    }


def same_row(one: dict[str, str], two: dict[str, str]) -> bool:
    """Words alike; numbers as near as float32 networks are in batches of another size."""

    def same(a: str, b: str) -> bool:
        try:
            return torch.isclose(
                torch.tensor(float(a)), torch.tensor(float(b)), rtol=1e-3, atol=1e-4
            ).item()
        except ValueError:
            return a == b

    return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)


def test_work_that_is_not_done_in_its_time_says_so_and_has_more_of_it_on_a_busy_machine(
    tmp_path, monkeypatch
):
    """Once a silent end: exit code -14 and no word, where other processes had left too little of the machine."""
    late = runs.python("import signal, time; signal.alarm(1); time.sleep(60)", tmp_path)
    assert late.code == -signal.SIGALRM and "had not ended in its time" in late.err
    assert "in its time" not in runs.python("print(1)", tmp_path).err
    for load, expected in [(0.1, 500), (10 * (os.cpu_count() or 1), 5000)]:
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert forks.patient(500) == expected


def test_processes_of_a_test_run_the_package_that_the_test_imports(tmp_path, monkeypatch):
    """A work tree's tests once judged the code of the clone, which is what is installed."""
    here = mhprobe.__file__
    assert runs.python("import mhprobe; print(mhprobe.__file__)", tmp_path).out.strip() == here
    copy = tmp_path / "copy" / "mhprobe" / "__init__.py"
    copy.parent.mkdir(parents=True)
    copy.touch()
    monkeypatch.syspath_prepend(copy.parents[1])
    monkeypatch.delitem(sys.modules, "mhprobe")
    command = [sys.executable, "-c", "import mhprobe; print(mhprobe.__file__)"]
    done = subprocess.run(
        command, env=forks.environment(), cwd=tmp_path, text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == str(copy) != here
